"""The ASGI application of a relay: called as a server calls it, or served by uvicorn on a real port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from redrive.webhooks import Relay
from tests.support.listening import HOST

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


def parts(*bodies: bytes, then: Message | None = None) -> Receive:
    """A body that comes in these parts; `then`: what comes in place of its end."""
    messages: list[Message] = [{"type": "http.request", "body": each, "more_body": True} for each in bodies]
    messages.append(then or {"type": "http.request", "body": b"", "more_body": False})
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    return receive


async def post(
    app: Any,
    path: str,
    body: bytes | Receive = b"{}",
    headers: Iterable[Header] = (),
    *,
    query: bytes = b"",
    method: str = "POST",
) -> Answer:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "headers": list(headers),
        "client": (HOST, 1),
        "server": (HOST, 80),
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, parts(body) if isinstance(body, bytes) else body, send)
    start, *rest = sent
    received = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], received, b"".join(each.get("body", b"") for each in rest))


@asynccontextmanager
async def serving(relay: Relay) -> AsyncIterator[int]:
    """The port."""
    config = uvicorn.Config(relay.asgi(), HOST, 0, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
    config.load()
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    try:
        while not server.started and not running.done():
            await asyncio.wait({running}, timeout=0.01)
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        await running


class Caller:
    """A connection to a server, on which anything may be written."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split(" ")[1]), headers, body)

    async def closed(self) -> bool:
        """Whether the other side closes it, which this waits for."""
        return await self._reader.read() == b""


@asynccontextmanager
async def calling(port: int) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: hooks.example", *headers, "", ""]).encode("latin-1")
