"""Waiting for the ends of items: by events of this process, and by looks at the store for what others end.

`history_at_end` is for one caller and one item, with frequent looks. `Waiting` is for many callers at once: its looks
are slow, and share one read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from redrive import events as ev
from redrive.core.item import History, Item, Millis
from redrive.core.select import Ids
from redrive.core.states import TERMINAL, State
from redrive.errors import NotFound, RedriveError, StoreUnavailable, WaitTimeout
from redrive.stores.base import Store
from redrive.stores.clock import Clock

LOOK_EVERY: Millis = 1_000
LOOK_AT = 200
"""Items of one look: after a long outage, a look at all of them would be a storm."""
PATIENCE: Millis = 10_000
"""How long the store may fail before callers get an error: longer than the worker's longest pause."""

Waiter = asyncio.Future[bool]


async def history_at_end(
    item_id: str, store: Store, events: ev.Events, clock: Clock, timeout: Millis | None
) -> History:
    """When the item has ended. Raises WaitTimeout."""
    limit = None if timeout is None else clock.monotonic() + timeout
    ended, looks = asyncio.Event(), 0

    def hear(event: ev.Event) -> None:
        if isinstance(event, ev.Finished) and event.id == item_id:
            ended.set()

    unsubscribe = events.subscribe(hear)
    try:
        while True:
            # Before the look: an end after it must not be missed.
            ended.clear()
            history = await store.get(item_id)
            if history.item.state in TERMINAL:
                return history
            looks += 1
            pause = min(10 * looks, 500)
            if limit is not None:
                pause = min(pause, limit - clock.monotonic())
                if pause <= 0:
                    hint = "it goes on; wait again or look at it with app.get"
                    raise WaitTimeout(f"item {item_id} is still {history.item.state}", hint=hint)
            await clock.wait(ended, pause)
    finally:
        unsubscribe()


class Waiting:
    """`unblock` is called with an item that an earlier one of its order key holds back.

    `hint` is that of the error which callers get while the store fails.
    """

    def __init__(self, store: Store, clock: Clock, unblock: Callable[[Item], Awaitable[None]], *, hint: str) -> None:
        self._store = store
        self._clock = clock
        self._unblock = unblock
        self._hint = hint
        self._waiters: dict[str, dict[Waiter, Millis]] = {}
        self._watched: dict[str, None] = {}
        self._outage: tuple[Millis, str] | None = None
        self._closed: RedriveError | None = None
        self._undecided: Counter[str] = Counter()

    async def wait(self, item_id: str) -> bool:
        """Whether the item is done, when it has ended; it may have been pruned since. Raises NotFound."""
        waiter = self.begin(item_id)
        try:
            try:
                await self._store.get(item_id)
            except NotFound:
                if await self._store.tombstone(item_id) is None:
                    raise
            await self.look([item_id])
            return await waiter
        finally:
            self.give_up(item_id, waiter)

    def begin(self, item_id: str) -> Waiter:
        """To be called before the item is put, so that its end is not missed."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            _fail(waiter, self._closed)
        else:
            self._waiters.setdefault(item_id, {})[waiter] = self._clock.monotonic()
        return waiter

    def give_up(self, item_id: str, waiter: Waiter) -> None:
        waiters = self._waiters.get(item_id, {})
        if waiters.pop(waiter, None) is not None and not waiters:
            del self._waiters[item_id]

    def watch(self, item_id: str) -> None:
        """Look at an item that no caller waits for: it may have to be unblocked."""
        self._watched[item_id] = None

    def end(self, item_id: str, *, done: bool) -> None:
        self._watched.pop(item_id, None)
        for waiter in self._waiters.pop(item_id, ()):
            if not waiter.done():
                waiter.set_result(done)

    def close(self, error: RedriveError) -> None:
        """All callers get the error, now and later."""
        self._closed = error
        waiting, self._waiters = self._waiters, {}
        for waiters in waiting.values():
            for waiter in waiters:
                _fail(waiter, error)

    def on_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.StoreFailed) and event.part == "pump":
            self._outage = self._clock.monotonic(), event.error
        elif isinstance(event, ev.StoreRecovered) and event.part == "pump":
            self._outage = None

    async def run(self) -> None:
        """The slow looks, until it is cancelled."""
        while True:
            known = [*self._waiters, *self._watched]
            await self._clock.sleep(LOOK_EVERY)
            self._report_outage()
            # Items that came since the last look are given time to end by themselves.
            await self.look([each for each in known if each in self._waiters or each in self._watched][:LOOK_AT])

    def _report_outage(self) -> None:
        if self._outage is None:
            return
        began, error = self._outage
        latest = self._clock.monotonic() - PATIENCE
        if began <= latest:
            for waiters in self._waiters.values():
                for waiter, since in waiters.items():
                    if since <= latest:
                        _fail(waiter, StoreUnavailable(error, hint=self._hint))

    async def look(self, ids: Iterable[str]) -> None:
        asked = tuple(dict.fromkeys(ids))
        if not asked:
            return
        try:
            found = {item.id: item for item in await self._store.find(Ids(asked), len(asked))}
            for item_id in asked:
                await self._looked(item_id, found.get(item_id))
        except RedriveError:
            return  # the worker emits StoreFailed, and the next look is soon
        for item_id in asked:  # the next look begins with others
            if item_id in self._waiters:
                self._waiters[item_id] = self._waiters.pop(item_id)
            if item_id in self._watched:
                self._watched[item_id] = self._watched.pop(item_id)

    @contextmanager
    def undecided(self, item_id: str) -> Iterator[None]:
        """In the block a dead letter is not an end: it is being replayed."""
        self._undecided[item_id] += 1
        try:
            yield
        finally:
            self._undecided[item_id] -= 1
            if not self._undecided[item_id]:
                del self._undecided[item_id]

    async def _looked(self, item_id: str, item: Item | None) -> None:
        if item is None:
            tombstone = await self._store.tombstone(item_id)
            # Without one, the put of another caller was perhaps cancelled.
            if tombstone is not None:
                self.end(item_id, done=tombstone.state is State.DONE)
        elif item.state is State.DEAD and item_id in self._undecided:
            return
        elif item.state in TERMINAL:
            self.end(item_id, done=item.state is State.DONE)
        elif item.hold == "order":
            await self._unblock(item)


def _fail(waiter: Waiter, error: RedriveError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # the caller may have been cancelled
