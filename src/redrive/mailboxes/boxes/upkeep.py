"""What an open store needs beside the calls: to be told who receives, retention, and the chores of its mailboxes.

Done in the background by whoever receives: by every look that finds it due, and between looks, while a message is
worked on for long, by a timer. A clock of a test has no timer: its time passes when the test says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redrive import __version__
from redrive.core.item import Millis
from redrive.core.verbs import WorkerFacts
from redrive.engine.maintainer import Maintainer
from redrive.errors import RedriveError
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock

logger = logging.getLogger("redrive.mailboxes")

BEAT: Millis = 10_000
BEAT_TTL: Millis = 30_000
LATELY: Millis = 600_000
"""Whoever received within this time still serves the mailbox: it may be at work on what it got."""
ROUND: Millis = 60_000
FAREWELL = 2.0
"""Seconds for the last beat. A store that is gone must not keep anybody."""

Chore = Callable[[], Awaitable[object]]


class Upkeep:
    def __init__(self, worker: str, store: Store, clock: Clock) -> None:
        self._worker = worker
        self._store = store
        self._clock = clock
        self._maintainer = Maintainer(worker, store, Events(), clock)
        self._chores: dict[object, Chore] = {}
        self._served: dict[str, Millis] = {}
        self._started = clock.now()
        self._beat_at = self._chores_at = clock.monotonic()
        self._sweep_at = clock.monotonic() + ROUND
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.Task[None] | None = None
        self.ended = False

    def add(self, owner: object, chore: Chore) -> None:
        """Something to do at the first look, and once a minute from then on. From any thread."""
        self._chores[owner] = chore
        self._chores_at = self._clock.monotonic()

    def remove(self, owner: object) -> None:
        self._chores.pop(owner, None)

    def glance(self, queue: str) -> None:
        """In the loop: somebody receives from this mailbox. Next to nothing, unless something is due."""
        now = self._clock.monotonic()
        self._served[queue] = now
        if now >= min(self._beat_at, self._chores_at, self._sweep_at):
            self._see_to_it(now)
        if self._timer is None and isinstance(self._clock, SystemClock):
            self._timer = asyncio.create_task(self._tick())

    @property
    def at_work(self) -> bool:
        return bool(self._tasks)

    async def rest(self) -> None:
        """In the loop: until what was begun has ended."""
        await asyncio.gather(*self._tasks.values())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(BEAT / 1000)
            self._see_to_it(self._clock.monotonic())

    def _see_to_it(self, now: Millis) -> None:
        if now >= self._beat_at:
            self._beat_at = now + BEAT
            self._begin("beat", self._beat)
        if now >= self._chores_at:
            self._chores_at = now + ROUND
            self._begin("chores", self._do_chores)
        if now >= self._sweep_at:
            self._sweep_at = now + ROUND
            self._begin("retention", self._maintainer.round)

    def _begin(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """One at a time of each. What fails is only told: it is due again soon."""

        async def attempt() -> None:
            try:
                await work()
            except RedriveError as error:
                logger.debug("%s: %s did not work: %s", self._worker, what, error)
            except Exception:
                logger.exception("%s: %s failed", self._worker, what)
            finally:
                self._tasks.pop(what, None)

        if what not in self._tasks:
            self._tasks[what] = asyncio.create_task(attempt())

    async def _beat(self, *, stopped: bool = False) -> None:
        now = self._clock.monotonic()
        queues = tuple(sorted(queue for queue, at in self._served.items() if now - at < LATELY))
        if queues:
            facts = WorkerFacts(
                queues,
                host=socket.gethostname(),
                pid=os.getpid(),
                release=__version__,
                started_at=self._started,
                stopped=stopped,
            )
            await self._store.beat(self._worker, facts, BEAT_TTL)

    async def _do_chores(self) -> None:
        for chore in tuple(self._chores.values()):
            try:
                await chore()
            except RedriveError as error:
                logger.debug("%s: a chore did not work: %s", self._worker, error)

    async def close(self) -> None:
        """Of the store, and of all that is done beside the calls: with the last mailbox, or with the process."""
        self.ended = True
        tasks = [*self._tasks.values(), *([] if self._timer is None else [self._timer])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(RedriveError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._beat(stopped=True)
        await self._store.close()
