"""A dependency is down, and a fleet leaves it in peace: few retries, one probe at a time for all, and nothing charged
for waiting. When it is back, all of it is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.gate import GateConfig, gate_config
from redrive.core.item import Instant
from redrive.core.select import Match
from redrive.core.states import State
from redrive.core.verbs import QueueChange
from redrive.events import GateClosed, GateOpened
from redrive.office.gates import GateView, declare_gate, show_gate
from redrive.stores.base import PAGE_LIMIT
from tests.support.lab import Lab, Seen

pytestmark = pytest.mark.slow

WORKERS = 3
ITEMS = 100


class Fleet:
    """The workers of a queue whose handler asks a dependency that is up or down."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.down = True
        self.calls: list[tuple[Instant, str, bool]] = []
        self.apps: list[Redrive] = []
        self.seen: list[Seen] = []

    async def prepare(self, config: GateConfig) -> None:
        await declare_gate(self.lab.store, "dependency", config)
        await self.lab.store.configure("q", QueueChange(gate="dependency"))
        for _ in range(WORKERS):
            app = await self.lab.app()
            self.seen.append(Seen(app))
            self.apps.append(app)

            @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=None), concurrency=5)
            async def ask(item: Item) -> None:
                self.calls.append((self.lab.clock.now(), item.id, item.errors == 0))
                if self.down:
                    raise ConnectionError("no answer")

        await self.apps[0].enqueue_many("q", [None] * ITEMS)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for app in self.apps:
                await stack.enter_async_context(self.lab.working(app))
            yield

    async def gate(self) -> GateView:
        return await show_gate(self.lab.store, "dependency")

    async def items(self) -> list[Item]:
        found: list[Item] = []
        cursor = None
        while True:
            page = await self.lab.store.find(Match("queue", "=", "q"), PAGE_LIMIT, cursor)
            found += page.items
            cursor = page.next
            if cursor is None:
                return found

    async def left(self) -> int:
        (row,) = (await self.lab.store.tally()).queues
        return row.ready + row.leased

    async def finish(self, limit_s: int) -> None:
        for _ in range(limit_s):
            if not await self.left():
                return
            await self.lab.pass_time("1s")
        raise AssertionError(f"{await self.left()} are left after {limit_s} s; {await self.gate()}")

    def told(self, kind: type[GateOpened | GateClosed]) -> list[GateOpened | GateClosed]:
        return [event for seen in self.seen for event in seen.of(kind)]


async def test_gap12_while_it_is_down_one_probe_goes_out_each_interval_for_the_whole_fleet(lab: Lab) -> None:
    fleet = Fleet(lab)
    await fleet.prepare(gate_config(interval="30s", longest="30s"))
    async with fleet.working():
        await lab.pass_time("5s")
        opened = await fleet.gate()
        assert opened.state == "open"
        before = len(fleet.calls)
        assert before < ITEMS // 2, "most of them never ran"
        await lab.pass_time("2m")
        probes = [at for at, _, _ in fleet.calls[before:]]
        assert len(probes) == 4
        assert all(later - earlier >= 30_000 for earlier, later in pairwise(probes))
        assert opened.since is not None
        assert probes[0] - opened.since >= 30_000

        called = {item_id for _, item_id, _ in fleet.calls}
        for item in await fleet.items():
            mine = sum(item_id == item.id for _, item_id, _ in fleet.calls) if item.id in called else 0
            assert (item.attempt, item.deliveries, item.errors) == (mine, mine, mine), "waiting costs nothing"
        retries = sum(not first for *_, first in fleet.calls)
        assert retries <= len(probes), "nothing but probes was tried again"

        fleet.down = False
        await lab.pass_time("30s")
        closed = await fleet.gate()
        assert (closed.state, closed.why) == ("closed", "a probe succeeded")
        await fleet.finish(limit_s=120)
    assert {item.state for item in await fleet.items()} == {State.DONE}
    assert len(fleet.told(GateOpened)) == len(fleet.told(GateClosed)) == 1
    assert closed.opened == 1


async def test_gap12_in_bad_times_retries_are_a_share_of_first_attempts(lab: Lab) -> None:
    """No breaker here: only the budget keeps the retries back."""
    fleet = Fleet(lab)
    await fleet.prepare(gate_config(failure_rate=None, consecutive=None, retry_share=0.1, retry_floor="10s"))
    async with fleet.working():
        await lab.pass_time("20s")
        firsts = sum(first for *_, first in fleet.calls)
        retries = len(fleet.calls) - firsts
        assert firsts == ITEMS
        floor = 20 // 10 + 1
        assert ITEMS // 10 <= retries <= ITEMS // 10 + floor
        assert sum(item.attempt for item in await fleet.items()) == len(fleet.calls), "waiting costs nothing"

        fleet.down = False
        # Not at the pace of bad times, in which the rest would take hours.
        await fleet.finish(limit_s=120)
    assert {item.state for item in await fleet.items()} == {State.DONE}
    assert fleet.told(GateOpened) == []
