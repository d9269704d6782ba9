"""A worker that works until idle while fake time passes; as exact with threads and databases as in memory.

Time moves only when nothing more can happen without it, and then straight to what comes next: while nothing is leased,
that is the next due item, whatever the worker's own chores (beats, looks, reaping) would have done on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from redrive import events as ev
from redrive.app import Redrive
from redrive.app.internals import store_of
from redrive.core.families import served
from redrive.core.item import Instant, Millis, short_id
from redrive.core.verbs import LeaseRequest, QueueTally, Settled, Settlement
from redrive.engine.registry import Handler, handler_of, ready_of
from redrive.errors import ConfigError, StoreError
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.testing import _inside
from redrive.testing._relay import Answer, P, Relay
from redrive.testing._spy import Spy
from redrive.testing.clock import FakeClock

STEPS = 100_000
"""So many steps through time in which nothing is begun or ended are enough: it will not."""
REFUSALS = 100
"""So often in a row the store may fail to tell what is left."""
REAL_MOMENT = 0.005
"""Seconds in which a real clock moves and a fake one does not."""
FAILURES = ("failed", "limited", "dead", "expired")


class Drained(Struct, frozen=True):
    """What happened, as ids in the order of its happening: an item that was retried twice is in `retried` twice."""

    done: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    snoozed: tuple[str, ...] = ()


class Watched(Relay):
    """The worker's way to the store: the clock stands still while a verb is under way, except while it sleeps."""

    def __init__(self, store: Store, clock: FakeClock, settling: Callable[[str], None]) -> None:
        super().__init__(store)
        self._clock = clock
        self._settling = settling

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        # Whatever becomes of the write: these handlers have ended, and the worker may now pause and ask again.
        for settlement in settlements:
            self._settling(settlement.id)
        return await super().settle(settlements, then)

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        with self._clock.busy(f"{verb.__name__} of the store"):
            return await verb(*args, **kwargs)


class Draining:
    def __init__(
        self,
        app: Redrive,
        handlers: Mapping[str, Handler],
        clock: FakeClock,
        *,
        within: Millis | None,
        fail_fast: bool,
        limit: int,
    ) -> None:
        self._app = app
        self._clock = clock
        self._end = None if within is None else clock.monotonic() + within
        self._spy = Spy() if fail_fast else None
        self._handlers = {queue: self._spy.on(each) if self._spy else each for queue, each in handlers.items()}
        self._limit = limit
        self._store = Watched(store_of(app), clock, self._ended)
        self._running: dict[str, Callable[[], None]] = {}
        self._begun: Counter[tuple[str, str]] = Counter()
        self._endings: defaultdict[str, list[str]] = defaultdict(list)
        self._steps = 0
        self._refusals = 0
        self._trouble: BaseException | None = None
        self._over = asyncio.Event()

    async def run(self) -> Drained:
        unsubscribe = self._app.events.subscribe(self._hear)
        try:
            with self._clock.driven():
                await self._check_clock()
                await self._work()
        finally:
            unsubscribe()
        if self._trouble is not None:
            raise self._trouble
        return Drained(**{name: tuple(ids) for name, ids in self._endings.items()})

    async def _work(self) -> None:
        working = asyncio.create_task(_inside.work(self._app, self._store, self._handlers))
        pacing = asyncio.create_task(self._pace())
        over = asyncio.create_task(self._over.wait())
        tasks = (working, pacing, over)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for item_id in tuple(self._running):
                self._ended(item_id)
        for task in ended:
            task.result()

    # -- what happens --------------------------------------------------------------------------------------------

    def _hear(self, event: ev.Event) -> None:
        match event:
            case ev.Started():
                self._begin(event)
            case ev.Finished():
                self._ended(event.id)
                self._finish(event)
            case ev.LeaseLost() | ev.SettleRefused():
                self._ended(event.id)
            case _:
                return
        self._steps = 0

    def _begin(self, event: ev.Started) -> None:
        """Subscribers are called where it happens: in the handler's own context, before the handler."""
        self._ended(event.id)
        self._running[event.id] = self._clock.begin_busy(f"the handler of {event.queue} (item {short_id(event.id)})")
        self._begun[event.queue, event.id] += 1
        if self._begun.total() > self._limit:
            self._fail(self._endless())

    def _ended(self, item_id: str) -> None:
        end = self._running.pop(item_id, None)
        if end is not None:
            end()

    def _finish(self, event: ev.Finished) -> None:
        if event.queue not in self._handlers:
            return
        word = _word(event)
        if word is not None:
            self._endings[word].append(event.id)
        if self._spy is not None and event.ending in FAILURES:
            text = f"{event.error}: {event.text}"
            self._fail(self._spy.error(event.queue, event.id, text, event.state, event.reason))

    def _fail(self, error: BaseException) -> None:
        self._trouble = self._trouble or error
        self._over.set()

    # -- time ----------------------------------------------------------------------------------------------------

    async def _pace(self) -> None:
        while True:
            await self._clock.rest()
            pause = await self._until_next()
            now = self._clock.monotonic()
            if pause is None or (self._end is not None and now + pause > self._end):
                break
            self._steps += 1
            if self._steps > STEPS:
                raise AssertionError("drain: time passes and nothing happens; somebody else holds what is leased")
            self._clock.advance(pause)
        if self._end is not None:
            self._clock.advance(max(0, self._end - now))

    async def _until_next(self) -> Millis | None:
        """How long until something can happen; None if nothing will by itself."""
        try:
            tally = await self._store.tally()
        except StoreError:
            # A store that fails on purpose: the worker pauses and asks again, and so do we.
            self._refusals += 1
            if self._refusals > REFUSALS:
                raise
            return self._clock.next_in or 1
        self._refusals = 0
        ours = [row for row in tally.queues if served(tuple(self._handlers), row.queue)]
        ready = [row for row in ours if row.ready and not row.paused]
        due = [when for row in ready if (when := await self._first_due(row)) is not None]
        pause = min(due) - tally.at if due else None
        if any(row.leased for row in ours) or (pause is not None and pause <= 0):
            # Handlers that sleep, leases of others, a worker that pauses before it asks again: the next one to wake.
            return self._clock.next_in or 1
        return pause

    async def _first_due(self, row: QueueTally) -> Instant | None:
        """Of the kinds that the handlers have."""
        chosen = ready_of(handler_of(self._handlers, row.queue), row.queue)
        if chosen is None:
            return row.oldest_due
        items = (await self._store.find(chosen, PAGE_LIMIT)).items
        return min([item.due_at for item in items if not item.hold], default=None)

    async def _check_clock(self) -> None:
        """A store on another clock would never see its time come. One that shows another time may be such a store."""
        with contextlib.suppress(StoreError):
            at = (await self._store.tally(members=False)).at
            if at == self._clock.now():
                return
            await asyncio.sleep(REAL_MOMENT)
            if (await self._store.tally(members=False)).at != at:
                hint = "make it with the clock that the app has: MemoryStore(clock), SqliteStore(path, clock=clock)"
                raise ConfigError("the store does not go by the app's clock", field="store", hint=hint)

    def _endless(self) -> AssertionError:
        (queue, item_id), times = self._begun.most_common(1)[0]
        return AssertionError(
            f"drain: more than {self._limit:,} attempts, and there is still work; {times:,} of them for item"
            f" {short_id(item_id)} of queue {queue!r}. A handler that snoozes for ever, or a follow-up of itself? Give"
            " `within` to stop after some time, or a higher `limit`."
        )


def _word(event: ev.Finished) -> str | None:
    if event.state in ("done", "dead"):
        return event.state
    if event.ending == "snoozed":
        return "snoozed"
    return "retried" if event.ending in ("failed", "limited", "crashed") else None
