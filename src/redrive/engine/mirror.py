"""A mirror: one process, elected through the store, keeps a copy of something in the store up to date.

It writes after `change`, and after a look every few seconds at a signature, for changes that other processes made, and
at the copy, for one that was deleted or changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redrive.core.item import Millis
from redrive.engine.ids import new_id
from redrive.errors import RedriveError, StoreError
from redrive.stores.base import Store
from redrive.stores.clock import Clock

WRITE_EVERY: Millis = 1_000
"""The shortest time between two writes."""
LOOK_EVERY: Millis = 5_000
"""The time between two looks at the signature and the copy, and between two tries of a write that fails."""
TERM: Millis = 15_000
"""How long an election lasts: another process takes over this long after a crash."""


class Mirror:
    """`election` names the copy. `signature` gives a value that changes with the original, `write` makes the copy,
    `is_intact` says whether the copy is still as it was written.

    `failed` is called with the error of the first of several writes that fail, RedriveError or OSError.
    """

    def __init__(
        self,
        election: str,
        store: Store,
        clock: Clock,
        *,
        signature: Callable[[], Awaitable[object]],
        write: Callable[[], Awaitable[object]],
        failed: Callable[[Exception], None],
        is_intact: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._election, self._owner = election, new_id()
        self._store = store
        self._clock = clock
        self._signature = signature
        self._write = write
        self._failed = failed
        self._is_intact = is_intact
        self._leads = self._unwritten = self._failing = False
        self._changed = asyncio.Event()
        self._seen: object = None
        self._turn = asyncio.Lock()
        # It begins with a write, since a crash may have left an old copy.
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=election)

    def change(self) -> None:
        """The original has changed."""
        self._changed.set()

    async def close(self) -> None:
        """Writes what is not written yet, and lets another process be elected."""
        async with self._turn:  # a write that has begun ends before its task is cancelled
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._unwritten or self._changed.is_set():
            await self._update()
        if self._leads:
            with suppress(StoreError):
                await self._store.elect(self._election, self._owner, 1)

    async def _run(self) -> None:
        while True:
            await self._clock.wait(self._changed, LOOK_EVERY - WRITE_EVERY)
            async with self._turn:
                await self._update()
            await self._clock.sleep(WRITE_EVERY)

    async def _update(self) -> None:
        """Never raises: the write is tried again."""
        self._unwritten |= self._changed.is_set()
        self._changed.clear()
        try:
            self._leads = await self._store.elect(self._election, self._owner, TERM)
            if not self._leads:
                self._unwritten, self._seen = False, None  # the elected process sees what changed here
                return
            seen = await self._signature()
            if self._is_intact is not None and not await self._is_intact():
                self._unwritten = True
            if self._unwritten or seen != self._seen:
                self._unwritten = True
                await self._write()
                self._unwritten, self._seen = False, seen
            self._failing = False
        except (RedriveError, OSError) as error:
            if not self._failing:
                self._failed(error)
            self._failing = True
