"""The work of a simulation: handlers that write down what they do, in simulated time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from redrive import Dead, Item, Policy, Redrive, Snooze, constant
from tests.support.rig import records as r
from tests.support.simulation.loop import Process

if TYPE_CHECKING:
    from tests.support.simulation.world import World

KINDS = (
    "ok",
    "ok",
    "result",
    "flaky",
    "flaky",
    "doomed",
    "dead",
    "slow",
    "slow",
    "chain",
    "chain",
    "snooze",
    "overdue",
)
WORK, ORDERED, TIMED = "work", "ordered", "timed"
GATE, ROUTE, SCHEDULE = "dependency", "refused", "tick"


class Scribe:
    """Writes down what the handlers of one process do, with the time by the store's clock."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._pid = process.pid

    def start(self, item: Item) -> None:
        world = self._world
        until = item.lease_until or 0
        world.log(r.Start(item.id, item.attempt, item.deliveries, self._pid, world.ns, world.store_time(), until))

    def end(self, item: Item, how: str) -> None:
        world = self._world
        world.log(r.End(item.id, item.attempt, item.deliveries, self._pid, world.ns, how, world.store_time()))

    def follow(self, item: Item, child: str) -> None:
        self._world.followed[child] = item.id
        self._world.log(r.Follow(child, item.id, item.deliveries, self._world.ns))


def register(app: Redrive, world: World, process: Process) -> None:
    plan, scribe = world.plan, Scribe(world, process)
    route = ROUTE if plan.route else ""
    policy = Policy(backoff=constant(plan.backoff / 1000), max_attempts=3, max_crashes=plan.max_crashes, route=route)
    lease = plan.lease / 1000
    _declare(app, world)

    async def run(item: Item, kind: str) -> str | None:
        scribe.start(item)
        try:
            await asyncio.sleep(world.duration(kind) / 1000)  # noqa: TID251 - simulated time
        except asyncio.CancelledError:
            scribe.end(item, "cancelled")
            raise
        return _end(app, scribe, item, kind)

    @app.handler(WORK, policy=policy, lease=lease, concurrency=4, gate=GATE if plan.gate else None)
    async def work(kind: str, item: Item) -> str | None:
        return await run(item, kind)

    if plan.timed:

        @app.handler(TIMED, policy=policy, lease=lease, timeout=lease, concurrency=2)
        async def timed(kind: str, item: Item) -> str | None:
            return await run(item, kind)

    if plan.ordered:

        @app.handler(ORDERED, policy=policy, lease=lease, concurrency=3)
        async def ordered(kind: str, item: Item) -> str | None:
            world.check_turn(item)
            return await run(item, kind)


def _declare(app: Redrive, world: World) -> None:
    if world.plan.route:
        app.route(ROUTE, capacity=2)
    if world.plan.gate:
        app.gate(GATE, consecutive=2, interval="1s", longest="4s", retry_floor="1s")
    if world.plan.schedule and world.weather.stormy:
        app.schedule(SCHEDULE, WORK, {"kind": "ok"}, every=world.plan.lease / 1000, catch_up="all")


def _end(app: Redrive, scribe: Scribe, item: Item, kind: str) -> str | None:
    how = "done"
    error: Exception | None = None
    if kind == "doomed" or (kind == "flaky" and item.errors < 2):
        how, error = "failed", ConnectionError(f"{kind} does not work")
    elif kind == "dead" and not item.replays:
        how, error = "dead", Dead("refused")
    elif kind == "snooze" and item.deliveries == 1:
        how, error = "snoozed", Snooze("300ms")
    elif kind == "chain":
        scribe.follow(item, str(app.follow_up(WORK, {"kind": "ok"})))
    scribe.end(item, how)
    if error is not None:
        raise error
    return item.id if kind == "result" else None
