"""Schedulers over one store, each with a way to it that can be broken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from redrive.core.item import Instant, Item
from redrive.core.schedule import Schedule, make_schedule, prepare, tick_of
from redrive.core.select import Match
from redrive.engine.schedule import Scheduler
from redrive.events import Event, Events, TicksMissed
from redrive.office.schedules import Schedules
from redrive.testing.faults import FaultyStore
from tests.support.lab import Lab, Shared

SECOND = 1000
HOUR = 3_600_000
_owners = count(1)
prepare(["Europe/Berlin", "UTC"])


def schedule(name: str = "beat", queue: str = "q", **options: Any) -> Schedule:
    return make_schedule(name, queue, b'"tick"', **({"every": "10s"} | options if "cron" not in options else options))


class Crew:
    """Schedulers over the lab's store, each with a way to it that can be broken."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.store = Shared(lab.store, lab.clock)
        self.office = Schedules(self.store, actor="ann")
        self.told: list[Event] = []
        self.began = lab.clock.now()
        self.stores: list[FaultyStore] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def join(self) -> FaultyStore:
        store = FaultyStore(self.store)
        events = Events()
        events.subscribe(self.told.append)
        scheduler = Scheduler(store, f"scheduler-{next(_owners)}", events=events, clock=self.lab.clock)
        self.stores.append(store)
        self.tasks.append(asyncio.create_task(scheduler.run()))
        await self.lab.quiet()
        return store

    def of(self, kind: type[TicksMissed]) -> list[TicksMissed]:
        return [event for event in self.told if isinstance(event, kind)]

    async def kill(self, number: int = 0) -> None:
        self.tasks[number].cancel()
        await asyncio.wait({self.tasks[number]})

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        for ended in await asyncio.gather(*self.tasks, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError), ended

    async def items(self, name: str = "beat") -> list[Item]:
        """In the order of their ticks."""
        found = (await self.lab.store.find(Match("id", "glob", f"{name}@*"), 1000)).items
        return sorted(found, key=lambda item: item.id)

    async def fired(self, name: str = "beat") -> list[Instant]:
        ticks = []
        for item in await self.items(name):
            tick = tick_of(item.id)
            assert tick is not None
            assert item.due_at == max(tick, item.enqueued_at), "never early"
            ticks.append(tick)
        return ticks

    def ticks(self, every: int = 10 * SECOND, *, after: Instant | None = None) -> list[Instant]:
        """All that should have been fired until now."""
        start = self.began if after is None else after
        return list(range((start // every + 1) * every, self.lab.clock.now() + 1, every))


@pytest.fixture
async def crew(lab: Lab) -> AsyncIterator[Crew]:
    made = Crew(lab)
    try:
        yield made
    finally:
        await made.leave()


@pytest.fixture
async def quick_crew(memory_lab: Lab) -> AsyncIterator[Crew]:
    """For what the store has no part in."""
    made = Crew(memory_lab)
    try:
        yield made
    finally:
        await made.leave()
