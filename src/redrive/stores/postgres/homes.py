"""Where a store lives: connections belong to one process, and to the one event loop that waits for them.

Most stores live in one loop. One that is used from several, or after a fork, has a session in each, made when it is
first needed there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from redrive.stores.aside import tell, through

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

Begin = Callable[[], Awaitable["Session"]]
Loop = asyncio.AbstractEventLoop


class Homes:
    """May be used from several threads: single steps on a dict need no lock, and each loop touches only its own."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._open = False
        self._pid = os.getpid()
        self._sessions: dict[Loop, Session] = {}
        self._doors: dict[Loop, asyncio.Lock] = {}

    async def open(self) -> None:
        self._forget_parent()
        async with self._door():
            await self._enter()
            self._open = True

    async def here(self) -> Session | None:
        """None if the store is not open."""
        session = self._sessions.get(asyncio.get_running_loop())
        if session is not None and session.pid == os.getpid():
            return session
        if not self._is_open():
            return None
        self._forget_parent()
        async with self._door():
            return await self._enter() if self._is_open() else None

    def _is_open(self) -> bool:
        return self._open

    async def _enter(self) -> Session:
        loop = asyncio.get_running_loop()
        for over in [other for other in tuple(self._sessions) if other.is_closed()]:
            self._leave(over)
        session = self._sessions.get(loop)
        if session is None:
            session = self._sessions[loop] = await self._begin()
        return session

    async def close(self) -> None:
        self._forget_parent()
        self._open = False
        async with self._door():
            session = self._sessions.pop(asyncio.get_running_loop(), None)
            for other in tuple(self._sessions):
                self._leave(other)
            if session is not None:
                await through(session.close())

    def _leave(self, loop: Loop) -> None:
        """A session is ended by its own loop, as long as that runs: no two threads may touch a connection."""
        session = self._sessions.pop(loop, None)
        self._doors.pop(loop, None)
        if session is None:
            return
        if loop.is_running():
            tell(loop, session.abandon)
        else:
            session.abandon()

    def _door(self) -> asyncio.Lock:
        """One opens or closes at a time."""
        return self._doors.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    def _forget_parent(self) -> None:
        """In a forked child, which has loops of its own."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        sessions, self._sessions, self._doors = self._sessions, {}, {}
        for session in sessions.values():
            session.abandon()
