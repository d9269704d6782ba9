"""A store with letters, a leader of replays, and an operator."""

from __future__ import annotations

import pytest

from redrive.core.acts import (
    Act,
    Replay,
)
from redrive.core.decide import Charge, ToDead
from redrive.core.item import NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.verbs import (
    LeaseRequest,
    Settlement,
    Want,
)
from redrive.engine.replays import ReplayLeader
from redrive.events import Events
from redrive.office.replays import Replays, start
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import failure

WHY = "the mail server is back"


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.replays = Replays(self.store, actor="ada")
        self.leader = self.another("w-1")

    def another(self, name: str) -> ReplayLeader:
        return ReplayLeader(self.store, name, events=Events(), clock=self.clock)

    async def letters(self, count: int, terms: Terms | None = None) -> list[str]:
        ids = [f"i-{number:04d}" for number in range(count)]
        await self.store.put([NewItem(one, "q", b"{}", terms=terms) for one in ids])
        given = await self.store.lease(LeaseRequest("w", (Want("q", count, 60_000, 3),), "n-1"))
        ends = [Settlement(item.id, item.deliveries, ToDead("rule", Charge.ERROR, failure())) for item in given.items]
        await self.store.settle(ends)
        return ids

    async def start(self, ids: list[str], rate: Rate | None, name: str = "r-1") -> None:
        done = await start(self.store, ids, Replay(), rate, Act("ada", WHY, name))
        assert len(done.changed) == len(ids)

    async def ready(self) -> int:
        return (await self.store.tally()).row("q").ready

    async def turns(self, millis: int, leader: ReplayLeader | None = None) -> None:
        """The leader, for so long."""
        while millis > 0:
            wait = min(millis, await (leader or self.leader).turn())
            self.clock.advance(wait)
            millis -= wait


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.store.open()
    return made
