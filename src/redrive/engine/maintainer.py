"""Retention, in small bites: what finished longer ago than its queue keeps it is pruned, each leaving a tombstone. And
the seals of the audit, one a minute while there is something new.

Every worker has one, and one of the fleet is elected to do it. It goes through the store in the order of enqueue, and
rests nineteen times as long as a bite took, so that it never has more than about five per cent of the store's time.
"""

from __future__ import annotations

import random

from redrive.core.acts import Act
from redrive.core.item import Millis
from redrive.core.verbs import Swept
from redrive.engine.ids import new_id
from redrive.engine.seals import seal
from redrive.engine.store_retry import StoreRetry
from redrive.events import Events
from redrive.events import Swept as SweptEvent
from redrive.stores.base import Store
from redrive.stores.clock import Clock

BITE = 500
REST = 19
"""So many times the length of a bite: one part work in twenty."""
BREATH: Millis = 50
ROUND: Millis = 60_000
"""From the end of one round through the store to the next."""
TERM: Millis = 3 * ROUND
"""For how long a maintainer is elected: whoever is lost is followed after this."""


class Maintainer:
    def __init__(self, worker: str, store: Store, events: Events, clock: Clock) -> None:
        self._worker = worker
        self._store = store
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("maintainer", events, clock)
        self._seal_at: Millis = 0

    async def run(self) -> None:
        while True:
            # Spread, so that a fleet that started together does not ask together.
            await self._clock.sleep(int(ROUND * (0.75 + random.random() / 4)))  # noqa: S311
            await self.round()

    async def round(self) -> None:
        """Once through the store, as long as this worker is the maintainer."""
        cursor: int | None = 0
        while cursor is not None and await self._retry(self._elected):
            await self._seal()
            began = self._clock.monotonic()
            swept = await self._bite(cursor)
            cursor = swept.next
            if swept.pruned or swept.results:
                self._events.emit(SweptEvent(self._worker, swept.pruned, swept.results))
            if cursor is not None:
                await self._clock.sleep(max(BREATH, REST * (self._clock.monotonic() - began)))

    async def _seal(self) -> None:
        """A round through a large store takes long: the audit does not wait for its end."""
        if self._clock.monotonic() >= self._seal_at:
            await self._retry(lambda: seal(self._store))
            self._seal_at = self._clock.monotonic() + ROUND // 2

    async def _elected(self) -> bool:
        return await self._store.elect("maintainer", self._worker, TERM)

    async def _bite(self, cursor: int) -> Swept:
        act = Act("retention", "kept as long as its queue says", new_id())
        return await self._retry(lambda: self._store.sweep(BITE, act, cursor))
