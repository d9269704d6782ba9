"""Callers that wait for the end of receipts: woken by events of this process, and by a slow look at the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from redrive import events as ev
from redrive.app.internals import Store
from redrive.core.item import Item, Millis
from redrive.core.select import Ids
from redrive.core.states import TERMINAL, State
from redrive.errors import NotFound, RedriveError, StoreUnavailable
from redrive.stores.clock import Clock

LOOK_EVERY: Millis = 1_000
LOOK_AT = 200
"""Items of one look: after a long outage, a look at all of them would be a storm."""
PATIENCE: Millis = 10_000
"""How long the store may fail before callers get an error: longer than the worker's longest pause."""
LOST = "the receipt is durable, and is delivered when the store is back"

Waiter = asyncio.Future[bool]


class Waiting:
    """`unblock` is called with an item that another one of its lease holds back."""

    def __init__(self, store: Store, clock: Clock, unblock: Callable[[Item], Awaitable[None]]) -> None:
        self._store = store
        self._clock = clock
        self._unblock = unblock
        self._waiters: dict[str, dict[Waiter, Millis]] = {}
        self._watched: dict[str, None] = {}
        self._outage: tuple[Millis, str] | None = None
        self._closed: RedriveError | None = None
        self._undecided: Counter[str] = Counter()

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
        """Look at an item that no caller waits for: it may be held back by superseded ones."""
        self._watched[item_id] = None

    def end(self, item_id: str, *, delivered: bool) -> None:
        self._watched.pop(item_id, None)
        for waiter in self._waiters.pop(item_id, ()):
            if not waiter.done():
                waiter.set_result(delivered)

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
        """The slow look, while the client is open."""
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
                        _fail(waiter, StoreUnavailable(error, hint=LOST))

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
                self.end(item_id, delivered=tombstone.state is State.DONE)
        elif item.state is State.DEAD and item_id in self._undecided:
            return
        elif item.state in TERMINAL:
            self.end(item_id, delivered=item.state is State.DONE)
        elif item.hold == "order":
            await self._unblock(item)


def _fail(waiter: Waiter, error: RedriveError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # the caller may have been cancelled


async def check_exists(store: Store, item_id: str) -> None:
    """Raises NotFound, unless the item exists or was pruned."""
    try:
        await store.get(item_id)
    except NotFound:
        if await store.tombstone(item_id) is None:
            raise
