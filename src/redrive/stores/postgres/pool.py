"""The connections of one process in one loop: made when needed, used again, and never again after a doubt."""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Awaitable, Callable

from redrive.stores.postgres.wire import Wire

AT_ONCE = 2
"""Connections being made at the same time: a server that has just come back is not stormed."""
OLD = 30.0
"""Seconds of rest after which a connection is asked whether it still answers: firewalls forget the quiet ones."""

Connect = Callable[[], Awaitable[Wire]]


class Pool:
    """At most `size` connections. Who waits is served in turn; the last one used is used first."""

    def __init__(self, connect: Connect, size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: list[Wire] = []
        self._out: set[Wire] = set()
        self._places = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._connecting = asyncio.Semaphore(AT_ONCE)
        self._generation = 0
        self._closed = False
        self._emptied = asyncio.Event()

    @property
    def in_use(self) -> bool:
        """All of them, by somebody else."""
        return len(self._out) >= self._size

    async def take(self) -> Wire:
        """Raises what connecting raises. Whoever is tired of waiting cancels."""
        await self._turn()
        self._places += 1
        try:
            wire = await self._usable() or await self._fresh()
        except BaseException:
            self._leave()
            raise
        self._out.add(wire)
        return wire

    async def _turn(self) -> None:
        if self._places < self._size and not self._turns:
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._turns:
                self._turns.remove(turn)
            elif turn.done() and not turn.cancelled():
                # It came to us while we were leaving.
                self._places -= 1
                self._next()
            raise
        self._places -= 1

    def _next(self) -> None:
        """Somebody's turn, who then has a place already: a newcomer must not take it from them."""
        while self._turns and self._places < self._size:
            turn = self._turns.popleft()
            if not turn.done():
                self._places += 1
                turn.set_result(None)

    def _leave(self) -> None:
        self._places -= 1
        self._next()
        if not self._places:
            self._emptied.set()

    async def _usable(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.generation == self._generation and not _has_ended(wire):
                if asyncio.get_running_loop().time() - wire.idle_since < OLD or await _answers(wire):
                    return wire
                # Its neighbours have been quiet for at least as long.
                self.doubt()
            finish(wire)
        return None

    async def _fresh(self) -> Wire:
        async with self._connecting:
            generation = self._generation
            wire = await self._connect()
            wire.generation = generation
            return wire

    def give(self, wire: Wire) -> None:
        self._out.discard(wire)
        if self._closed or wire.closed or wire.generation != self._generation:
            finish(wire)
        else:
            wire.idle_since = asyncio.get_running_loop().time()
            self._idle.append(wire)
        self._leave()

    def drop(self, wire: Wire) -> None:
        """It failed. So may all that are as old: a server that was restarted has forgotten every one of them."""
        self._out.discard(wire)
        finish(wire)
        self.doubt()
        self._leave()

    def doubt(self) -> None:
        self._generation += 1
        idle, self._idle = self._idle, []
        for wire in idle:
            finish(wire)

    async def close(self, patience: float) -> None:
        """Waits for those that are in use, which have a limit of their own."""
        self._closed = True
        if self._places:
            self._emptied.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._emptied.wait()
            except TimeoutError:
                pass
        self.abandon()

    def abandon(self) -> None:
        """At once, whoever uses them."""
        self._closed = True
        for wire in (*self._idle, *self._out):
            finish(wire)
        self._idle.clear()
        self._out.clear()


def finish(wire: Wire) -> None:
    """Closes the socket; in a forked child only forgets it, for a goodbye would end the connection of the parent."""
    wire._closed = True  # noqa: SLF001 - what its own close does, which has to be awaited for no reason
    if wire.pid == os.getpid():
        wire.pgconn.finish()
    else:
        wire.forget()


def _has_ended(wire: Wire) -> bool:
    """A server says nothing to those who ask nothing, except that it goes. To hear that takes no round trip."""
    if wire.closed:
        return True
    poll = select.poll()
    poll.register(wire.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


async def _answers(wire: Wire) -> bool:
    try:
        await wire.rows("select 1")
    except Exception:  # noqa: BLE001 - as above
        return False
    return True
