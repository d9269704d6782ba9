"""What the store says of the queues a worker serves, remembered for about a second.

Limits, rates and gates are not read here: the store itself holds to them in every lease. What the worker acts on (the
name of a policy, the share of retries) is read when an item fails, and beside the pump while it leases: so a change is
obeyed within FRESH by a worker that is busy, and with the next look at the store by one that is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from redrive.core.families import family_of, is_family, member_settings
from redrive.core.item import Millis
from redrive.core.verbs import QueueSettings
from redrive.errors import StoreError
from redrive.stores.base import Store
from redrive.stores.clock import Clock

FRESH: Millis = 1000
MOST = 10_000
"""Of a family there may be very many members: so many queues are remembered."""

_NONE = QueueSettings()


class Settings:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, QueueSettings] = {}
        self._read_at: dict[str, Millis] = {}
        self._one_reads = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._next_look: Millis = clock.monotonic()

    def known(self, queue: str) -> QueueSettings:
        """As they were when they were last read; of a member that was not, those of its family."""
        known = self._known.get(queue)
        if known is not None:
            return known
        family = self._known.get(family_of(queue))
        return _NONE if family is None else member_settings(queue, _NONE, family)

    async def fresh(self, queue: str) -> QueueSettings:
        """No older than FRESH, unless the store fails: then what is known has to do."""
        if self._is_old(queue):
            # Many may fail at once; one of them asks.
            async with self._one_reads:
                if self._is_old(queue):
                    await self._read(queue)
        return self.known(queue)

    async def encrypts(self, queue: str) -> bool:
        """Whether bodies of the queue are stored encrypted only, also if that cannot be read just now.

        Without keys a worker stops when it knows of such a queue, and nothing is read.
        """
        if not self._store.info().keys:
            return self.known(queue).encrypt
        await self.fresh(queue)
        known = self._known.get(queue)
        return known is None or known.encrypt

    def refresh(self, queues: Callable[[], Iterable[str]]) -> None:
        """Have those that are old read in the background. May be called as often as one likes."""
        now = self._clock.monotonic()
        if now >= self._next_look and (self._reading is None or self._reading.done()):
            self._next_look = now + FRESH
            self._reading = asyncio.create_task(self.read(tuple(queues())))

    async def read(self, queues: Iterable[str]) -> None:
        for queue in queues:
            await self.fresh(queue)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _is_old(self, queue: str) -> bool:
        at = self._read_at.get(queue)
        return at is None or self._clock.monotonic() - at >= FRESH

    async def _read(self, queue: str) -> None:
        if len(self._known) >= MOST:
            self._known = {name: known for name, known in self._known.items() if is_family(name)}
            self._read_at = {name: at for name, at in self._read_at.items() if is_family(name)}
        with suppress(StoreError):
            self._known[queue] = await self._store.settings(queue)
        # A failure, too, is not repeated within the second: not everybody has to wait for a store that is away.
        self._read_at[queue] = self._clock.monotonic()
