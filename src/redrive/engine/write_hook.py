"""The write hook of a worker: items of this process are written just before the worker's own write.

So the worker leases them at once, and a store with one writer has both writes in one commit. Items of one turn of the
loop share a write. Without a worker, the hook writes them itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from redrive.core.item import NewItem
from redrive.engine.batcher import Batcher
from redrive.engine.store_retry import retry_unknown
from redrive.stores.base import Store
from redrive.stores.clock import Clock

MOST = 500
PATIENCE = 0.05
"""Seconds that items wait for the worker, which may be busy with a store that does not answer."""


class WriteHook:
    """`added` is called with the ids that a write has added, before their callers are answered."""

    def __init__(self, store: Store, clock: Clock, added: Callable[[tuple[str, ...]], None]) -> None:
        self._store = store
        self._clock = clock
        self._added = added
        self._batcher: Batcher[NewItem, bool] = Batcher(self._write, most=MOST, start=self._start)
        self._wake: Callable[[], None] | None = None
        self._late: asyncio.TimerHandle | None = None

    async def put(self, item: NewItem) -> bool:
        """Durable when it returns. False: the id is taken."""
        return await self._batcher(item)

    def attend(self, wake: Callable[[], None] | None) -> None:
        """A worker calls `begin` before each write, and at once when `wake` is called. None: no worker does."""
        self._wake = wake
        if wake is None:
            self.begin()

    def begin(self) -> bool:
        """Whether items go to the store in the next turn of the loop."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        return self._batcher.begin()

    def _start(self) -> None:
        if self._wake is None:
            self.begin()
        else:
            self._wake()
            if self._late is None:
                self._late = asyncio.get_running_loop().call_later(PATIENCE, self.begin)

    async def _write(self, items: Sequence[NewItem]) -> list[bool]:
        result, _ = await retry_unknown(lambda: self._store.put(items), clock=self._clock)
        if result.added:
            self._added(result.added)
        added = frozenset(result.added)
        return [item.id in added for item in items]
