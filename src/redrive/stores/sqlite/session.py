"""What an open store has in one process: two threads with their connections, the bell, and what it remembers."""

from __future__ import annotations

import asyncio
import os
from typing import Literal

from redrive.stores.aside import aside, through
from redrive.stores.clock import Clock, StoreTime
from redrive.stores.sqlite import connect
from redrive.stores.sqlite.binding import Claim, Connection
from redrive.stores.sqlite.connect import Settings
from redrive.stores.sqlite.memo import BoundMemo
from redrive.stores.sqlite.reader import Reader
from redrive.stores.sqlite.wake import Bell
from redrive.stores.sqlite.writer import Writer
from redrive.stores.waiters import Waiters


class Session:
    """Belongs to the process that opened it. In a forked child it can only be abandoned."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        time = StoreTime(clock)
        self.pid = os.getpid()
        self.memo = BoundMemo()
        self.waiters = Waiters()
        self.durability: Literal["power-loss", "process-crash", "none"] = settings.durability
        self.schema = 0
        self._bell = Bell(settings.path)
        self.writer = Writer(settings, time, self._bell.anybody, self._opened, self._woken)
        self.reader = Reader(settings, time)
        self._settings = settings
        self._claim: Claim | None = None

    def _opened(self, connection: Connection) -> None:
        self.durability = connect.durability_at(connection, self._settings.path)
        self.schema = connect.schema_of(connection)
        self._bell.bind()

    def _woken(self, queues: frozenset[str]) -> None:
        self.waiters.wake(queues)
        self._bell.ring()

    async def open(self) -> None:
        self._claim = Claim(self._settings.path, self._settings.binding)
        try:
            await self.writer.start()
            await self.reader.start()
        except BaseException:
            await through(self.close())
            raise
        self._bell.listen(asyncio.get_running_loop(), self.waiters)

    async def close(self) -> None:
        self.waiters.wake()
        self._bell.mute()
        await aside(self._end)
        if self._claim is not None:
            self._claim.release()

    def _end(self) -> None:
        """In one thread: each would take longer to start than what it waits for."""
        # The reader first: the last connection to close also cleans up the log, and that should be the writer's.
        for lane in (self.reader, self.writer):
            lane.shut()
            lane.wait()
        self._bell.close()

    def abandon(self) -> None:
        """In a child, which has none of its parent's connections (forks.py): its copy of the parent's socket goes."""
        self._bell.abandon()
