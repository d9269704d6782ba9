"""The heartbeat of a worker, and the commands that operators give it.

Each beat says which queues the worker serves and how many items it runs; a worker whose beats stop is taken for dead.
With every beat it reads its command: `drain` (take nothing new, finish, end) or `stop` (release what runs, end).
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable
from contextlib import suppress

from redrive import events as ev
from redrive._version import __version__
from redrive.core.item import Millis
from redrive.core.verbs import WorkerFacts
from redrive.engine import orders
from redrive.engine.ids import new_id
from redrive.engine.store_retry import StoreRetry
from redrive.errors import StoreError
from redrive.stores.base import Store
from redrive.stores.clock import Clock

EVERY: Millis = 10_000
EXPIRES: Millis = 3 * EVERY
LAST_BEAT = 2.0
"""Seconds for the last one. If the store does not answer, the beat before it expires."""


def worker_name() -> str:
    return f"{platform.node() or 'host'}-{os.getpid()}-{new_id()[:8]}"


class Heartbeat:
    """`obey` is called once for each new command, in the loop. `running`: how many items the worker has in hand."""

    def __init__(
        self,
        worker: str,
        store: Store,
        *,
        queues: Callable[[], Iterable[str]],
        slots: int = 0,
        kinds: Iterable[str] = (),
        release: str = "",
        running: Callable[[], int],
        obey: Callable[[orders.Word], None],
        events: ev.Events,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._store = store
        self._queues = queues
        self._slots = slots
        self._kinds = tuple(kinds)
        self._release = release or __version__
        self._running = running
        self._obey = obey
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("beat", events, clock)
        self._started_at = clock.now()
        self._command = ""

    async def begin(self) -> None:
        """Before the worker holds anything, so that a report of its death finds it."""
        with suppress(StoreError):
            await self._tell()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY)
            await self._retry(self._read)
            await self._retry(self._tell)

    async def beat(self) -> None:
        """Read the command, and tell the store that the worker lives and has read it."""
        await self._read()
        await self._tell()

    async def _read(self) -> None:
        self._follow(await orders.read(self._store, self._worker))

    async def _tell(self) -> None:
        await self._store.beat(self._worker, self._facts(), EXPIRES)

    async def end(self) -> None:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_BEAT):
                await self._store.beat(self._worker, self._facts(stopped=True), 0)
                if self._command:
                    await orders.forget(self._store, self._worker)

    def _follow(self, order: orders.Order | None) -> None:
        if order is not None and order.word != self._command:
            self._command = order.word
            self._events.emit(ev.WorkerOrdered(self._worker, order.word, order.by, order.reason))
            self._obey(order.word)

    def _facts(self, *, stopped: bool = False) -> WorkerFacts:
        return WorkerFacts(
            queues=tuple(self._queues()),
            host=platform.node(),
            pid=os.getpid(),
            release=self._release,
            started_at=self._started_at,
            running=self._running(),
            stopped=stopped,
            slots=self._slots,
            order=self._command,
            kinds=self._kinds,
            missing_keys=self._store.info().missing_keys,
        )
