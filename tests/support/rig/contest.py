"""R0: two workers and one item, whose first holder is late: a game that a store can only win by being honest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from redrive import Item, Policy, Redrive, constant
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.url import store_from_url
from tests.support.rig import records as r
from tests.support.rig.handlers import Scribe
from tests.support.rig.log import read_all
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.scenario import LaterClock, Place
from tests.support.rig.survey import survey
from tests.support.rig.verdict import judge
from tests.support.rig.worker import transcriber

LIMIT = 60.0
"""Seconds for what comes at once, on a machine that is busy with other things."""


Through = Callable[[Store], Store]


async def contest(place: Place, of_first: Through, of_second: Through, *, lapsed: bool) -> dict[str, dict[str, str]]:
    """The first holder runs until the second has begun, and ends before it. The faults, by class.

    Each goes to the store through something of its own. `lapsed`: by the second one's clock, the lease of the first is
    over. Otherwise only a cheat ever gets it.
    """
    first: Clock = SystemClock()
    second: Clock = LaterClock() if lapsed else SystemClock()
    begun, late, current = asyncio.Event(), asyncio.Event(), asyncio.Event()
    slow = _app(place, of_first(store_from_url(place.url)), first)
    quick = _app(place, of_second(store_from_url(place.url, clock=second)), second)
    _handle(slow, Scribe(place.log("runs-of-first"), first), late, begun)
    taken = asyncio.Event()
    _handle(quick, Scribe(place.log("runs-of-second"), second), current, taken)
    async with slow, quick:
        await Producer(slow, place.log("producer")).enqueue("q", "item")
        async with _working(slow):
            await asyncio.wait_for(begun.wait(), LIMIT)
            async with _working(quick):
                await asyncio.wait_for(taken.wait(), LIMIT)
                late.set()
                await eventually(lambda: _word_of_first(place), limit=LIMIT, what="the first has spoken")
                current.set()
                await eventually(lambda: _ended_twice(place), limit=LIMIT, what="both have spoken")
    store = await store_from_url(place.url, clock=LaterClock()).open()
    try:
        return judge(read_all(place.logs), await survey(store)).faults
    finally:
        await store.close()


def _app(place: Place, store: Store, clock: Clock) -> Redrive:
    app = Redrive(store, log=False, clock=clock)
    app.events.subscribe(transcriber(place.log(f"events-of-{type(clock).__name__}"), clock))
    return app


def _handle(app: Redrive, scribe: Scribe, go: asyncio.Event, begun: asyncio.Event) -> None:
    # A long lease, so that the first one does not hear that it is lost before it has spoken.
    @app.handler("q", policy=Policy(backoff=constant("1ms")), lease="5m", concurrency=1)
    async def handle(item: Item) -> None:
        scribe.start(item)
        begun.set()
        await go.wait()
        scribe.end(item, "done")


@contextlib.asynccontextmanager
async def _working(app: Redrive) -> AsyncIterator[None]:
    task = asyncio.create_task(app.run())
    try:
        yield
    finally:
        await app.stop(grace=0)
        await task


def _word_of_first(place: Place) -> bool:
    return any(isinstance(one, r.Settled | r.Refused | r.Lost) and one.delivery == 1 for one in read_all(place.logs))


def _ended_twice(place: Place) -> bool:
    ends = [one for one in read_all(place.logs) if isinstance(one, r.Settled | r.Refused)]
    return len({one.delivery for one in ends if not (isinstance(one, r.Settled) and one.ending == "crashed")}) > 1
