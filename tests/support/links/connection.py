"""One client of a link, its own connection to the server, and what happens in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.links.conditions import (
    BlackHole,
    Condition,
    CutAfter,
    CutReply,
    CutRequest,
    HalfClosed,
    Latency,
    Mark,
    Side,
    Sliced,
)

CHUNK = 65_536
WAITING = 64
"""Chunks on their way in one direction; then the sender has to wait, as with a full window."""
QUIET = 0.02
"""An answer may come in parts. It has come when nothing came for so many seconds."""
TAIL = 4_096
"""How much of what was sent before is looked at with the next bytes: a mark may lie across both."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Cut(Exception):
    """The end of a connection without a goodbye."""


@dataclass
class Counts:
    """What a link has seen. `pieces`: writes to either side. `cuts`: connections that a condition has ended.

    `taken`: bytes that came from either side, whether they went on or not.
    """

    connections: int = 0
    taken: int = 0
    up: int = 0
    down: int = 0
    pieces: int = 0
    cuts: int = 0


class Connection:
    def __init__(self, client: socket.socket, condition: Condition, counts: Counts, spend: Callable[[], bool]) -> None:
        self.condition = condition
        self.counts = counts
        self.spend = spend
        self.answer_awaited = False
        self._client = client
        self._server = socket.socket()
        self._changed = asyncio.Event()
        self._flows: dict[Side, Flow] = {}
        self._quiet: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._reset = True  # unless it comes to a proper end

    async def run(self, server: tuple[str, int]) -> None:
        self._task = asyncio.current_task()
        for side in (self._client, self._server):
            side.setblocking(False)
        try:
            await self.opening()
            await asyncio.get_running_loop().sock_connect(self._server, server)
            await self._relay()
        except* Cut:
            self.counts.cuts += 1
        except* OSError:
            pass  # one side is gone without a goodbye: so is the other

    async def _relay(self) -> None:
        for end in (self._client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._flows[Side.UP] = Flow(self, Side.UP, self._client, self._server)
        self._flows[Side.DOWN] = Flow(self, Side.DOWN, self._server, self._client)
        self._half_close()
        async with asyncio.TaskGroup() as both:
            for flow in self._flows.values():
                both.create_task(flow.read())
                both.create_task(flow.write())
        self._reset = False

    def become(self, condition: Condition) -> None:
        self.condition = condition
        for flow in self._flows.values():
            flow.passed, flow.tail = 0, b""
        self._half_close()
        self._changed.set()
        self._changed = asyncio.Event()

    def _half_close(self) -> None:
        if isinstance(self.condition, HalfClosed) and self._flows:
            self._flows[self.condition.side].end()

    async def opening(self) -> None:
        """Until something comes through."""
        while isinstance(self.condition, BlackHole):
            await self._changed.wait()

    def answered(self) -> None:
        """More of the answer that nobody will see."""
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(QUIET, self._cut)

    def _cut(self) -> None:
        self.counts.cuts += 1
        assert self._task is not None
        self._task.cancel()

    def close(self) -> None:
        """To be called when `run` is over, or was never begun."""
        if self._quiet is not None:
            self._quiet.cancel()
        for end in (self._client, self._server):
            if self._reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            end.close()


class Flow:
    """One direction of a connection."""

    def __init__(self, connection: Connection, side: Side, source: socket.socket, target: socket.socket) -> None:
        self.passed = 0
        self.tail = b""
        self._connection = connection
        self._side = side
        self._source = source
        self._target = target
        self._ended = False
        self._waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING)

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(self._source, CHUNK)
            self._connection.counts.taken += len(data)
            condition = self._connection.condition
            delay = condition.seconds if isinstance(condition, Latency) else 0.0
            await self._waiting.put((loop.time() + delay, data))
            if not data:
                return

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await self._waiting.get()
            await asyncio.sleep(due - loop.time())  # noqa: TID251 - latency is real time
            await self._connection.opening()
            if not data:
                if self._side is Side.DOWN and self._connection.answer_awaited:
                    raise Cut  # a server that leaves has answered, too
                self.end()
                return
            if not self._ended:
                await self._deliver(data)

    def end(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):  # it may be gone altogether
            self._target.shutdown(socket.SHUT_WR)

    async def _deliver(self, data: bytes) -> None:
        match self._connection.condition:
            case Sliced(size):
                for start in range(0, len(data), size):
                    await self._send(data[start : start + size])
                    await asyncio.sleep(0)  # noqa: TID251 - the other side may look now
            case CutAfter(count, side) if side is self._side:
                room = count - self.passed
                await self._send(data[:room])
                if len(data) >= room:
                    raise Cut
            case CutRequest(mark) if self._side is Side.UP:
                if self._has(mark, data) and self._connection.spend():
                    raise Cut
                await self._send(data)
            case CutReply(mark):
                await self._cut_reply(mark, data)
            case _:
                await self._send(data)

    async def _cut_reply(self, mark: Mark, data: bytes) -> None:
        connection = self._connection
        if self._side is Side.UP:
            if self._has(mark, data) and connection.spend():
                connection.answer_awaited = True
            await self._send(data)
        elif connection.answer_awaited:
            connection.answered()
        else:
            await self._send(data)

    def _has(self, mark: Mark, data: bytes) -> bool:
        seen = self.tail + data
        found = mark in seen if isinstance(mark, bytes) else mark(seen)
        self.tail = b"" if found else seen[-TAIL:]
        return found

    async def _send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._target, data)
        self.passed += len(data)
        counts = self._connection.counts
        counts.pieces += 1
        if self._side is Side.UP:
            counts.up += len(data)
        else:
            counts.down += len(data)
