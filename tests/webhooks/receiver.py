"""A target of webhooks on a real port that answers as a script says, bytes and all, and notes each request."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.support.listening import HOST, listening

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PACE = 0.02
"""Seconds between two bytes of a slow answer."""
CHUNK = b"x" * 65_536
MOST = 64 * 1024 * 1024
"""Bytes of an answer without end, should nobody stop reading."""


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def __getitem__(self, name: str) -> str:
        (value,) = self.all(name)
        return value


class Receiver:
    """`scripts`: by path, one for each request in turn, the last for all that follow; 200 where there is none."""

    def __init__(self, scripts: Mapping[str, tuple[Script, ...]] | None = None) -> None:
        self.port = 0
        self.seen: dict[str, list[Seen]] = defaultdict(list)
        self._scripts = dict(scripts or {})

    def url(self, path: str = "", *, scheme: str = "http", host: str = HOST) -> str:
        return f"{scheme}://{host}:{self.port}/{path}"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        target = first.split(" ")[1].removeprefix("/")
        pairs = [line.partition(": ") for line in lines]
        headers = tuple([(name, value) for name, _, value in pairs])
        length = dict(headers).get("Content-Length", "0")
        body = await reader.readexactly(int(length))
        path = target.partition("?")[0]
        seen = self.seen[path]
        seen.append(Seen(target, headers, body))
        scripts = self._scripts.get(path, (status(200),))
        await scripts[min(len(seen), len(scripts)) - 1](reader, writer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving(
    scripts: Mapping[str, tuple[Script, ...]] | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(scripts)
    async with listening(receiver.talk, context) as port:
        receiver.port = port
        yield receiver


def status(number: int, *headers: str, body: bytes = b"") -> Script:
    lines = [f"HTTP/1.1 {number} Said", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def raw(data: bytes) -> Script:
    """These bytes, and the connection is closed."""

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return script


def reset(data: bytes = b"") -> Script:
    """These bytes, and the connection is reset."""

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return script


def silence(data: bytes = b"") -> Script:
    """These bytes, and nothing more until the other side has gone."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await reader.read()

    return script


def trickle(head: bytes) -> Script:
    """A head, and then a byte now and then until the other side has gone."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        gone = asyncio.ensure_future(reader.read())
        try:
            while not gone.done():
                writer.write(b"x")
                await writer.drain()
                await asyncio.wait({gone}, timeout=PACE)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    return script


def endless(head: bytes, chunk: bytes = CHUNK, sent: list[int] | None = None) -> Script:
    """A head, and then these bytes again and again until the other side has gone. `sent` counts them."""

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for _round in range(MOST // len(chunk)):
            writer.write(chunk)
            if sent is not None:
                sent.append(len(chunk))
            await writer.drain()

    return script
