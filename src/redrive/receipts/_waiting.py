"""Those who wait for receipts to end: told by the events of this process, and by a slow look at what others do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from redrive import events as ev
from redrive.core.item import Item, Millis
from redrive.core.select import Ids
from redrive.core.states import TERMINAL, State
from redrive.errors import NotFound, RedriveError, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.clock import Clock

LOOK_EVERY: Millis = 1_000
LOOK_AT = 200
"""So many at one look: what waits long can wait a little longer, and a long outage must not become a storm."""
PATIENCE: Millis = 10_000
"""For so long the store may be in trouble before whoever waits is told: longer than the worker's longest pause."""
LOST = "the receipt is durable, and is delivered when the store is back"


class Waiter:
    """One who waits, since when."""

    __slots__ = ("future", "since")

    def __init__(self, since: Millis) -> None:
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.since = since

    def tell(self, *, delivered: bool) -> None:
        if not self.future.done():
            self.future.set_result(delivered)

    def fail(self, error: RedriveError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # Whoever was cut off meanwhile does not ask, and that is no fault.
            self.future.exception()


class Waiting:
    """`held`: called with an item that is kept back by another one of its lease."""

    def __init__(self, store: Store, queue: str, clock: Clock, held: Callable[[Item], Awaitable[None]]) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._held = held
        self._waiters: dict[str, list[Waiter]] = {}
        self._watched: dict[str, None] = {}
        self._trouble: tuple[Millis, str] | None = None
        self._over: RedriveError | None = None
        self._unjudged: Counter[str] = Counter()

    def begin(self, item_id: str) -> Waiter:
        """To be called before the item is put: then no end is missed."""
        waiter = Waiter(self._clock.monotonic())
        if self._over is not None:
            waiter.fail(self._over)
        else:
            self._waiters.setdefault(item_id, []).append(waiter)
        return waiter

    def give_up(self, item_id: str, waiter: Waiter) -> None:
        """Whoever asked does not wait any more."""
        waiters = self._waiters.get(item_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[item_id]

    def watch(self, item_id: str) -> None:
        """Nobody waits for it, but it must not be kept back by what is not owed any more."""
        self._watched[item_id] = None

    def end(self, item_id: str, *, delivered: bool) -> None:
        self._watched.pop(item_id, None)
        for waiter in self._waiters.pop(item_id, ()):
            waiter.tell(delivered=delivered)

    def close(self, error: RedriveError) -> None:
        """Nobody here will tell how anything ends any more."""
        self._over = error
        waiting, self._waiters = self._waiters, {}
        for waiters in waiting.values():
            for waiter in waiters:
                waiter.fail(error)

    def hear(self, event: ev.Event) -> None:
        """Whether the store lets the worker write."""
        if isinstance(event, ev.StoreFailed) and event.part == "pump":
            self._trouble = self._clock.monotonic(), event.error
        elif isinstance(event, ev.StoreRecovered) and event.part == "pump":
            self._trouble = None

    async def run(self) -> None:
        """The slow look, for as long as the client is open."""
        while True:
            known = [*self._waiters, *self._watched]
            await self._clock.sleep(LOOK_EVERY)
            self._tell_trouble()
            # What came since the last look is given time to end by itself.
            await self.look([each for each in known if each in self._waiters or each in self._watched][:LOOK_AT])

    def _tell_trouble(self) -> None:
        if self._trouble is None:
            return
        began, error = self._trouble
        latest = self._clock.monotonic() - PATIENCE
        if began <= latest:
            for waiters in self._waiters.values():
                for waiter in waiters:
                    if waiter.since <= latest:
                        waiter.fail(StoreUnavailable(error, hint=LOST))

    async def look(self, ids: Iterable[str]) -> None:
        asked = tuple(dict.fromkeys(ids))
        if not asked:
            return
        try:
            found = {item.id: item for item in await self._store.find(Ids(asked), len(asked))}
            for item_id in asked:
                await self._looked(item_id, found.get(item_id))
        except RedriveError:
            return  # the worker says so if the store fails; and the next look is soon
        for item_id in asked:
            self._to_the_end(item_id)

    @contextmanager
    def unjudged(self, item_id: str) -> Iterator[None]:
        """Meanwhile, that it is dead says nothing: it is being sent again."""
        self._unjudged[item_id] += 1
        try:
            yield
        finally:
            self._unjudged[item_id] -= 1
            if not self._unjudged[item_id]:
                del self._unjudged[item_id]

    async def _looked(self, item_id: str, item: Item | None) -> None:
        if item is not None and item.state is State.DEAD and item_id in self._unjudged:
            return
        if item is None:
            buried = await self._store.tombstone(item_id)
            # What is nowhere was perhaps put by a caller who was cut off in the middle.
            if buried is not None:
                self.end(item_id, delivered=buried.state is State.DONE)
        elif item.state in TERMINAL:
            self.end(item_id, delivered=item.state is State.DONE)
        elif item.hold == "order":
            await self._held(item)

    def _to_the_end(self, item_id: str) -> None:
        """Others first, the next time."""
        if item_id in self._waiters:
            self._waiters[item_id] = self._waiters.pop(item_id)
        if item_id in self._watched:
            self._watched[item_id] = self._watched.pop(item_id)


async def state_of(store: Store, item_id: str) -> State:
    """Also of what was pruned. Raises NotFound."""
    try:
        return (await store.get(item_id)).item.state
    except NotFound:
        buried = await store.tombstone(item_id)
        if buried is None:
            raise
        return buried.state
