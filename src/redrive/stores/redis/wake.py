"""The bell: a connection of its own that hears of work, so that nobody waits for the next poll.

It is a hint and never more. Whoever subscribes anew wakes everybody, for what was said meanwhile nobody heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from redrive.errors import RedriveError
from redrive.stores.redis import faults
from redrive.stores.redis.options import Options
from redrive.stores.redis.pool import Pool
from redrive.stores.redis.wire import Refused, Wire
from redrive.stores.waiters import Waiters

_log = logging.getLogger("redrive.stores")

LONGEST_PAUSE = 5.0
FIRST_PAUSE = 0.05


class Bell:
    def __init__(self, pool: Pool, options: Options, waiters: Waiters) -> None:
        self._pool = pool
        self._channel = f"{options.prefix}wake"
        self._waiters = waiters
        self._patience = min(options.connect_timeout, options.timeout) / 1000
        self._begun = asyncio.Event()
        self._deaf = False
        self._told = False
        self._task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Returns when it listens, or when that takes too long: polling goes on meanwhile."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_listening())
        if not self._begun.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._begun.wait()

    async def _keep_listening(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._listen()
            except Exception as error:
                if not isinstance(error, RedriveError) and not faults.is_trouble(error):
                    raise
                self._tell(error)
            if not self._deaf:
                pause = FIRST_PAUSE
            self._deaf = True
            # Whoever waits for the first word goes on without it.
            self._begun.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _tell(self, error: Exception) -> None:
        """Once: who may not listen will not tomorrow. What is merely away is told by the verbs."""
        if self._told or not (isinstance(error, Refused) and error.word == "NOPERM"):
            return
        self._told = True
        _log.warning(
            "%s: this user may not listen, so idle workers find work by polling alone: ACL SETUSER <user> &%s lets it",
            self._pool.where,
            self._channel,
        )

    async def _listen(self) -> None:
        wire = await self._pool.connect()
        try:
            async with asyncio.timeout(self._patience):
                await wire.ask("SUBSCRIBE", self._channel)
            if self._deaf:
                self._deaf = False
                self._waiters.wake()
            self._begun.set()
            await self._hear(wire)
        finally:
            wire.drop()

    async def _hear(self, wire: Wire) -> None:
        while True:
            kind, _, said = await wire.hear()
            if kind == b"message":
                self._waiters.wake(said.decode(errors="replace").split("\0"))

    async def mute(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
