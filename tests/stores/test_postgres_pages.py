"""Pages of `find` and `ids` on PostgreSQL: nothing is left out, and an index serves them, however many there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.select import EVERYTHING, And, Ids, Match, Not, Selection, matches
from redrive.core.verbs import Archive
from redrive.stores.postgres import PostgresStore, find
from redrive.stores.postgres.session import Session
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from tests.stores.postgres_hot_kit import session_of
from tests.stores.postgres_kit import DEAD, OPEN, act, execute, failure, letters
from tests.support.stores import fresh_store


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with fresh_store("postgres", tmp_path) as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = store_from_url(url, clock=FakeClock())
    assert isinstance(store, PostgresStore)
    yield await store.open()
    await store.close()


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        (OPEN,),
        (OPEN, Match("cause", "=", "c1")),
        (OPEN, Match("cause", "=", "c1"), Match("queue", "=", "q")),
        (OPEN, Match("error", "=", "E")),
        (OPEN, Match("error", "=", "app.E")),
        (OPEN, Match("category", "=", "data"), Match("errors", ">", 0)),
        (OPEN, Match("queue", "=", "q"), DEAD),
        (OPEN, Match("queue", "=", "q"), Match("queue", "=", "other")),
        (OPEN, Match("queue", "=", "q"), Match("category", "=", "data")),
        (OPEN, Match("disposition", "=", "archived")),
        (OPEN, Match("died", "<=", 0), Match("cause", "=", "c1")),
    ],
)
async def test_pages_by_name_leave_nothing_out(store: PostgresStore, names: tuple[Match, ...]) -> None:
    """All died at the same instant, so only their numbers tell pages apart; and others lie between them."""
    kinds = (failure(), failure("app.E"), failure("other.E"), failure(cause="c0"), failure(cause="c2", category="net"))
    ids = await letters(store, *[kinds[number % 5] for number in range(40)])
    await store.amend(Ids(tuple(ids[::7])), Archive(), act())
    now = (await store.tally()).at
    everything = (await store.find(EVERYTHING)).items
    expected = [item.id for item in everything if matches(And(names), item, now)]
    found: list[str] = []
    cursor = None
    while True:
        page = await store.find(And(names), 3, cursor)
        found += [item.id for item in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert found == expected
    assert (await store.ids(And(names))).ids == tuple(expected)


# --- indexes ----------------------------------------------------------------------------------------------------------

MANY = 60_000
FEW = 5_000
"""Rows to look at for a page of 100: each is in up to four tables, and an error is looked for by its short name."""
MADE = (
    "insert into item select g, md5(g::text), 'q' || g % 10, g, 0, 0, '' from generate_series(1, 60000) g",
    """
    insert into course (seq, queue, state, due_at, renewed_at, ended_at)
    select g, 'q' || g % 10, 'dead', g, g, g from generate_series(1, 60000) g
    """,
    """
    insert into letter
    select g, case when g % 3 = 0 and g < 30000 then 'past' else 'q' || g % 10 end, 'max_attempts', g / 10,
           case when g % 9 = 0 then 'archived' else 'open' end,
           case when g < 500 then 'old' when g < 30000 then 'past' else 'c' || g % 100 end,
           'app.' || case when g < 30000 then 'Past' else 'E' || g % 20 end,
           case when g < 30000 then 'Past' else 'E' || g % 20 end,
           case when g < 500 then 'rare' when g < 30000 then 'past' else 'timeout' end, 'default', ''
    from generate_series(1, 60000) g
    """,
    "insert into tag select 'rare', g from (values (5), (77)) tagged (g)",
    "insert into tag select 'past', g from generate_series(1, 5000) g",
    "insert into tag select 'half', g from generate_series(2, 60000, 2) g",
    "update course set ties = 128",
)
TAGS = ("rare", "past", "half", "nobody's")
SERVED: dict[str, Selection] = {
    "open": And((DEAD, OPEN)),
    "queue": And((DEAD, OPEN, Match("queue", "=", "q3"))),
    "cause": And((DEAD, OPEN, Match("cause", "=", "c7"))),
    "a cause of long ago": And((DEAD, OPEN, Match("cause", "=", "old"))),
    "cause and queue": And((DEAD, OPEN, Match("cause", "=", "c7"), Match("queue", "=", "q7"))),
    "error": And((DEAD, OPEN, Match("error", "=", "E3"))),
    "error with its module": And((DEAD, OPEN, Match("error", "=", "app.E3"))),
    "category": And((DEAD, OPEN, Match("category", "=", "timeout"))),
    "a category of long ago": And((DEAD, OPEN, Match("category", "=", "rare"))),
    "a cause of many, long ago": And((DEAD, OPEN, Match("cause", "=", "past"))),
    "an error of many, long ago": And((DEAD, OPEN, Match("error", "=", "Past"))),
    "with its module": And((DEAD, OPEN, Match("error", "=", "app.Past"))),
    "a category of many, long ago": And((DEAD, OPEN, Match("category", "=", "past"))),
    "a queue of many, long ago": And((DEAD, OPEN, Match("queue", "=", "past"))),
    "a cause in a queue, long ago": And((DEAD, OPEN, Match("cause", "=", "past"), Match("queue", "=", "past"))),
    "with more to ask": And((And((DEAD, Match("cause", "=", "past"))), Match("errors", "<", 3), And((OPEN,)))),
    **{f"letters with the tag {tag}": And((DEAD, OPEN, Match("tag", "=", tag))) for tag in TAGS},
    **{f"items with the tag {tag}": Match("tag", "=", tag) for tag in TAGS},
    **{f"{tag} of a cause": And((DEAD, OPEN, Match("cause", "=", "c7"), Match("tag", "=", tag))) for tag in TAGS},
    "without a tag": And((DEAD, OPEN, Not(Match("tag", "=", "half")))),
    "since an instant": And((DEAD, OPEN, Match("died_at", ">=", 5_990))),
    "nobody's error": And((DEAD, OPEN, Match("error", "=", "Nobodys"))),
    "counters of an item": And((DEAD, OPEN, Match("errors", "<", 3))),
    "part of an id": And((DEAD, Match("id", "glob", "c4ca4238*"))),
    "part of any id": Match("id", "glob", "c4ca4238*"),
    "an id": Ids(("c4ca4238a0b923820dcc509a6f75849b",)),
    "all": EVERYTHING,
    "ready": Match("state", "=", "ready"),
}


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
async def test_pages_are_served_by_an_index(url: str, store: PostgresStore, known: bool) -> None:
    """Counted in rows that the server looks at: a walk through all is far beyond, whatever the machine.

    Also before the server has its first statistics of the tables: it must not make them by itself meanwhile.
    """
    tables = ("item", "course", "letter", "tag")
    await execute(url, *[f"alter table {table} set (autovacuum_enabled = false)" for table in tables])
    await execute(url, *MADE)
    if known:
        await execute(url, *[f"analyze {table}" for table in tables])
    session = await session_of(store)
    assert await _looked_at(session, "select count(reason) from {schema}.letter") >= MANY
    for name, selection in SERVED.items():
        search = await find.search_for(session, selection, 100, None)
        statement = session.sql("get", "whole").replace("{found}", search.statement)
        rows_read = await _looked_at(session, statement, search.values)
        assert rows_read < FEW, f"{name}: {rows_read} rows"


async def _looked_at(session: Session, statement: str, values: tuple[Any, ...] = ()) -> int:
    ((plan,),) = await session.page("explain (analyze, format json) " + find.filled(session, statement), values)
    return _rows_in(plan[0]["Plan"])


def _rows_in(plan: dict[str, Any]) -> int:
    """Of all tables, with those that were looked at for nothing."""
    looked = 0
    if "Relation Name" in plan:
        kinds = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        looked = sum(int(plan.get(kind, 0)) for kind in kinds) * int(plan["Actual Loops"])
    return looked + sum(_rows_in(part) for part in plan.get("Plans", ()))
