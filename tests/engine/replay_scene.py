"""A store with letters, a leader of replays, and an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

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
from redrive.engine.replays import ByPayload, ReplayLeader
from redrive.events import Events
from redrive.office.replay.by_payload import send_window
from redrive.office.replays import Replays, start
from redrive.stores.base import Store
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import failure
from tests.support.lab import LABS, open_lab

WHY = "the mail server is back"


class Scene:
    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.replays = Replays(store, actor="ada")
        self.leader = self.another("w-1")

    def another(self, name: str, store: Store | None = None) -> ReplayLeader:
        send = partial(send_window, clock=self.clock)
        return ReplayLeader(store or self.store, name, events=Events(), clock=self.clock, send_by_payload=send)

    async def letters(self, count: int, terms: Terms | None = None, payload: str = "{}") -> list[str]:
        """`payload`: with the number of each letter in place of %n."""
        ids = [f"i-{number:04d}" for number in range(count)]
        bodies = [payload.replace("%n", str(number)).encode() for number in range(count)]
        await self.store.put([NewItem(one, "q", body, terms=terms) for one, body in zip(ids, bodies, strict=True)])
        given = await self.store.lease(LeaseRequest("w", (Want("q", count, 60_000, 3),), "n-1"))
        ends = [Settlement(item.id, item.deliveries, ToDead("rule", Charge.ERROR, failure())) for item in given.items]
        await self.store.settle(ends)
        return ids

    async def start(
        self, ids: list[str], rate: Rate | None, name: str = "r-1", by_payload: ByPayload | None = None
    ) -> None:
        done = await start(self.store, ids, Replay(), rate, Act("ada", WHY, name), by_payload=by_payload)
        assert len(done.changed) == len(ids)

    async def ready(self) -> int:
        return (await self.store.tally()).row("q").ready

    async def turns(self, millis: int, leader: ReplayLeader | None = None) -> None:
        """The leader, for so long."""
        while millis > 0:
            wait = min(millis, await (leader or self.leader).turn())
            self.clock.advance(wait)
            millis -= wait


EACH_STORE = pytest.mark.parametrize("scene", LABS, indirect=True)


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    """In memory, unless the test is marked with EACH_STORE."""
    async with open_lab(getattr(request, "param", "memory"), tmp_path) as lab:
        yield Scene(lab.store, lab.clock)
