"""PostgreSQL serves pages and acts by an index, whatever statistics its planner has.

Counted in rows that the server looks at: a walk through all is far beyond, whatever the machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from proofs.stores import postgres_plans_kit
from proofs.stores.postgres_plans_kit import LOOKED, MANY, Planned, of_act, of_page
from redrive.core.item import Item
from redrive.core.select import And, Match
from redrive.core.verbs import QueueChange
from redrive.stores.postgres import PostgresStore
from redrive.stores.postgres.live import WALKED
from redrive.stores.postgres.session import Session
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from tests.stores.postgres_hot_kit import Open, opened, session_of, url
from tests.stores.postgres_kit import execute
from tests.stores.test_postgres_pages import SERVED
from tests.stores.test_postgres_terms import LEASE, are_few, bound, done, settle, wanting
from tests.support.servers import schemas

__all__ = ["opened", "url"]

ACTS = (
    "never",
    "when all were ready",
    "when all were done",
    "when all letters were replayed",
    "when it was full, and when it was empty",
)
FEW = 5_000
"""Rows to look at for a page of 100: each is in up to four tables, and an error is looked for by its short name."""
PAST = 5_000
"""Have the tag `past`, which is few: they are looked up and sorted, wherever they lie."""
NAMED = 30_001
"""Letters of the most frequent name. An act takes them in another order than indexes have them, and looks at all of one
name before it would look at all there are."""
BEFORE = 2 * WALKED + FEW
"""To know where to look: whether few have a tag, and whether a walk is short, with what else is asked on the way."""


@pytest.fixture(scope="module")
def planned() -> Iterator[Planned]:
    with postgres_plans_kit.planned() as planned:
        yield planned


@pytest.fixture
async def session(planned: Planned) -> AsyncIterator[Session]:
    store = store_from_url(planned.url, clock=FakeClock())
    assert isinstance(store, PostgresStore)
    await store.open()
    yield await session_of(store)
    await store.close()


@pytest.mark.parametrize("looked", LOOKED)
async def test_pages_are_served_by_an_index(
    planned: Planned,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    looked: str,
) -> None:
    planned.believe(looked)
    for name, selection in SERVED.items():
        for oldest in (False, True):
            rows = await of_page(session, monkeypatch, selection, 100, oldest=oldest)
            bound = FEW + (PAST if name == "letters with the tag past" else 0)
            told = f"{name}, {'oldest' if oldest else 'latest'} first: {rows.counts} rows"
            assert rows.page < bound, told
            assert rows.before < BEFORE, told
    planned.still_believe()


@pytest.mark.parametrize("looked", ACTS)
async def test_acts_find_the_first_by_an_index(
    planned: Planned,
    session: Session,
    looked: str,
) -> None:
    planned.believe(looked)
    for name, selection in SERVED.items():
        rows = await of_act(session, selection, 100)
        assert rows.page < FEW + NAMED, f"{name}: {rows.counts} rows"
        assert rows.before < BEFORE, f"{name}: {rows.counts} rows"
    planned.still_believe()


async def test_what_no_index_serves_is_seen(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Done ones of a worker whom nobody knows: the count is that of all."""
    nobodys = And((Match("state", "=", "done"), Match("worker", "=", "nobody")))
    assert (await of_page(session, monkeypatch, nobodys, 100, oldest=False)).page >= MANY
    assert (await of_act(session, nobodys, 100)).page >= MANY


@pytest.fixture
def alone() -> Iterator[str]:
    """On a server where nobody else holds an old snapshot, so that what is dead can be removed."""
    with schemas.apart() as url:
        yield url


async def test_what_was_set_aside_is_passed_over_once(alone: str, opened: Open) -> None:
    store = await opened(where=alone)
    await store.configure("q", QueueChange(max_per_key=1))
    await store.put([bound(f"i-{n}", limit_key="one") for n in range(1_500)])
    await store.put([bound(f"k-{n}", limit_key=f"k-{n}") for n in range(2_000)])
    (first,) = (await store.lease(wanting(1, "n"))).items
    others: tuple[Item, ...] = ()
    for number in range(2):
        # Each sets a thousand aside at most; then come the others.
        others = (await store.lease(wanting(1, f"n-{number}", worker=f"w-{number}"))).items
    assert [item.id for item in others] == ["k-0"]
    # What was updated has left old entries in the indexes, which are no rows to look at.
    await execute(alone, "vacuum course")
    await are_few(alone, LEASE, settle(first.seq, 1))
    await store.settle(done([first]))
    assert [(await store.get(item_id)).item.hold for item_id in ("i-1", "i-2")] == ["", "limit"]
