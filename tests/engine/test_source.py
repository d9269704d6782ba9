"""A queue received from without a handler: leased, brought back after a lost receiver, expired, or only seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from redrive.core import outcome as o
from redrive.core.item import Item, NewItem
from redrive.engine.report import Reporter
from redrive.engine.source import QueueSource
from redrive.events import Event, Events, Finished, Leased, Reclaimed
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock


class Desk:
    """A store with one queue, and sources of two receivers."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)
        self.events = Events()
        self.seen: list[Event] = []
        self.events.subscribe(self.seen.append)
        self.old: set[str] = set()
        self.first, self.second = self._source("first"), self._source("second")

    def _source(self, worker: str) -> QueueSource:
        report = Reporter(worker, self.events, self.clock)
        return QueueSource("q", worker, self.store, self._expired, report=report, events=self.events, clock=self.clock)

    def _expired(self, item: Item) -> o.Outcome | None:
        return o.Cancelled("expired") if item.id in self.old else None

    async def put(self, *ids: str) -> None:
        await self.store.put([NewItem(each, "q", b"{}") for each in ids])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    await made.store.open()
    yield made
    await made.store.close()


def ids(items: object) -> list[str]:
    return [item.id for item in items]  # type: ignore[attr-defined]


async def test_receivers_at_the_same_time_share_what_there_is(desk: Desk) -> None:
    await desk.put("a", "b", "c")
    taken = await asyncio.gather(desk.first.take(2, 1000), desk.first.take(2, 1000), desk.second.take(2, 1000))
    assert sorted(key for items in taken for key in ids(items)) == ["a", "b", "c"]


async def test_an_item_of_a_lost_receiver_comes_again_and_is_reported(desk: Desk) -> None:
    await desk.put("a")
    assert ids(await desk.first.take(1, 1000)) == ["a"]
    assert ids(await desk.second.take(1, 1000)) == []
    desk.clock.advance(1001)
    (item,) = await desk.second.take(1, 1000)
    assert (item.id, item.attempt, item.crashes) == ("a", 2, 1)
    assert [type(event) for event in desk.seen] == [Leased, Reclaimed, Finished]
    (attempt,) = (await desk.store.get("a")).attempts
    assert (attempt.worker, attempt.note) == ("first", "found by second")


async def test_items_that_are_too_old_end_and_the_next_are_given(desk: Desk) -> None:
    await desk.put("a", "b", "c")
    desk.old = {"a", "b"}
    assert ids(await desk.first.take(2, 1000)) == ["c"]
    assert (await desk.store.get("a")).item.state == "cancelled"


async def test_a_lease_of_nothing_gives_them_back_at_once(desk: Desk) -> None:
    await desk.put("a")
    assert ids(await desk.first.take(1, 0)) == ["a"]
    (item,) = await desk.second.take(1, 1000)
    assert (item.id, item.attempt, item.crashes) == ("a", 2, 0)
