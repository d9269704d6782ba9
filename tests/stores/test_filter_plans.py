"""Filters by indexed fields stay indexed: what is looked at grows with what is found, not with what there is."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from redrive.core import select
from redrive.core.acts import Tag
from redrive.core.filters import parse
from redrive.core.select import Ids
from redrive.stores.base import Store
from redrive.stores.redis import plan
from redrive.stores.sqlite import search
from redrive.stores.sqlite.compile import compiled
from redrive.stores.statements import load
from redrive.stores.tagged import tagged_of
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import OpenStore, World, act, news
from tests.support.stores import fresh_store


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_store(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def world(url: str) -> AsyncIterator[World]:
    clock = FakeClock()
    handles: list[Store] = []

    async def open_store() -> Store:
        handles.append(await store_from_url(url, clock=clock).open())
        return handles[-1]

    opening: OpenStore = open_store
    yield World(await open_store(), opening, clock, frozenset())
    for handle in handles:
        await handle.close()


@pytest.mark.parametrize("url", ["sqlite", pytest.param("redis", marks=pytest.mark.slow)], indirect=True)
async def test_a_tag_is_found_by_its_index(world: World) -> None:
    letters = await world.letters(30)
    await world.put(*news(30))
    tagged = {letters[4].id, letters[20].id}
    await world.store.amend(Ids(tuple(tagged)), Tag(("eu",)), act())
    for text in ("tag:eu", "state:dead tag:eu", "disposition:open queue:emails tag:eu", "tag:eu declined"):
        page = await world.store.find(parse(text.replace("emails", letters[0].queue)))
        assert page.scanned <= len(tagged), text
        assert {item.id for item in page.items} <= tagged


async def test_sqlite_begins_with_the_tag_or_walks_with_a_probe(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    await (await store_from_url(f"sqlite:///{path}").open()).close()
    for text in ("state:dead disposition:open tag:eu", "disposition:open queue:q tag:eu", "queue:q tag:eu"):
        selection = parse(text)
        letters = select.pins_dead(selection)
        tagged = tagged_of(selection)
        assert tagged is not None
        few = _plan(path, f"tagged_{'letters' if letters else 'items'}", compiled(tagged.rest, 0, letters=letters)[0])
        assert few[0].startswith("SEARCH g USING PRIMARY KEY (tag=?"), few
        walked = _plan(path, "letters" if letters else "items", compiled(selection, 0, letters=letters)[0])
        assert "SEARCH g USING PRIMARY KEY (tag=? AND seq=?)" in walked, walked
        assert not any("TEMP B-TREE" in step or "LIST" in step for step in walked), walked


def _plan(path: Path, name: str, where: str) -> list[str]:
    sql = load("sqlite", "find")[name].replace("{where}", where)
    with closing(sqlite3.connect(path)) as connection:
        return [row[3] for row in connection.execute(f"explain query plan {sql}", (0,) * sql.count("?"))]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_letters_of_a_frequent_tag_are_walked_in_their_own_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = await world.letters(6)
    await world.store.amend(Ids(tuple(letter.id for letter in letters[1:])), Tag(("eu",)), act())
    for most in (4, 5):
        monkeypatch.setattr(search, "FEW_TAGGED", most)
        page = await world.store.find(parse("state:dead tag:eu"), 3)
        rest = await world.store.find(parse("state:dead tag:eu"), 3, page.next)
        found = [item.id for item in (*page.items, *rest.items)]
        assert found == [letter.id for letter in letters[:0:-1]]


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("died>1h", 9_000_000 - 3_600_000, None),
        ("died<=1h", None, 9_000_000 - 3_600_000),
        ("died_at<1970-01-01T01:00", 3_600_000, None),
        ("died_at>=1970-01-01T01:00", None, 3_600_000),
        ("died_at:1970-01-01T01:00", 3_659_999, 3_600_000),
        ("died>1h died_at<1970-01-01T01:00 queue:q", 3_600_000, None),
        ("died<1h died_at>1970-01-01T01:00", None, 9_000_000 - 3_600_000),
        ("died<1h OR died_at>1970-01-01T01:00", None, None),
        ("-died<1h", None, None),
    ],
)
def test_redis_reads_letters_only_of_the_time_that_is_asked_for(text: str, begin: int | None, end: int | None) -> None:
    window = plan.died_within(parse(text))
    assert (window.begin(9_000_000), window.end(9_000_000)) == (begin, end)
