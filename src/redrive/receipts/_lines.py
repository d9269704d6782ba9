"""Connections to one web server, kept between questions, each with one question at a time.

Of our own, as a general client takes longer for a call than a store takes to be sure of it (ADR 28). Nothing is
redirected or unpacked, and there are no proxies.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import quote, urlsplit

from redrive.receipts._http import CutOff, Enough, Reply
from redrive.stores.aside import aside

KEPT = 15.0
"""Seconds that a connection may rest: many servers close it after that, perhaps just when it is used."""
EYEBALLS = 0.25
"""Seconds after which the next address of a host is tried beside the first."""
FAREWELL = 1.0
_PORTS = {"http": 80, "https": 443}
_IN_PATH = "/%:@!$&'()*+,;=~"
_IN_QUERY = f"{_IN_PATH}?"


class _Line(asyncio.Protocol):
    """One connection. Whoever is interrupted in the middle must drop it, for the answer is still to come."""

    __slots__ = ("_answer", "_loop", "_reply", "_transport", "gone", "rests_since")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._answer: asyncio.Future[None] | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        self.rests_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream is made of
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.drop()  # it speaks unasked
            return
        try:
            reply.feed(data)
        except (CutOff, ConnectionError) as error:
            self._tell(error)
            self.drop()
            return
        if reply.done:
            self._tell(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reply is not None:
            try:
                self._reply.ended(exc)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                self._tell(error)
            else:
                self._tell(None)
        if not self.gone.done():
            self.gone.set_result(None)

    def _tell(self, error: Exception | None) -> None:
        answer, self._answer, self._reply = self._answer, None, None
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    async def ask(self, question: bytes, reply: Reply) -> None:
        """Raises OSError and EOFError."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._reply, self._answer = reply, self._loop.create_future()
        try:
            transport.write(question)
            await self._answer
        except BaseException:
            self.drop()
            raise

    def can_rest(self) -> bool:
        """Nothing of the question is left to be sent: a server may answer before it has read all."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Lines:
    """`headers` go with every question; there are `most` at once."""

    def __init__(self, url: str, headers: dict[str, str], most: int) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._is_secret = parts.scheme == "https"
        place = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
        path = quote(parts.path or "/", safe=_IN_PATH) + (
            f"?{quote(parts.query, safe=_IN_QUERY)}" if parts.query else ""
        )
        told = "".join(f"{name}: {value}\r\n" for name, value in {"Host": place, **headers}.items())
        self._head = f"POST {path} HTTP/1.1\r\n{told}"
        self._room = asyncio.Semaphore(most)
        self._trust: ssl.SSLContext | None = None
        self._resting: list[_Line] = []
        self._all: set[_Line] = set()

    async def open(self) -> None:
        if self._is_secret:
            self._trust = await aside(ssl.create_default_context)

    async def close(self) -> None:
        lines, self._resting = tuple(self._all), []
        for line in lines:
            line.drop()
        if lines:
            await asyncio.wait([line.gone for line in lines], timeout=FAREWELL)

    async def ask(self, key: str, body: bytes, limit: int, enough: Enough, *, safe: bool) -> Reply:
        """One question. Raises OSError, EOFError for an answer that is broken; ValueError for what cannot be sent.

        `safe`: whoever gets it twice by this key knows that. Then it is asked again if a connection that had rested was
        closed without a word: as a rule the server did that before it saw the question.
        """
        if not key.isprintable():
            raise ValueError("its key cannot be sent in a header")
        question = f"{self._head}Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        async with self._room:
            line = self._rested()
            if line is not None:
                reply = Reply(limit, enough)
                try:
                    await line.ask(question, reply)
                except ConnectionError:
                    if not safe or reply.began:
                        raise
                else:
                    return self._answered(line, reply)
            line, reply = await self._connect(), Reply(limit, enough)
            await line.ask(question, reply)
            return self._answered(line, reply)

    def _answered(self, line: _Line, reply: Reply) -> Reply:
        if reply.reusable and line.can_rest():
            line.rests_since = asyncio.get_running_loop().time()
            self._resting.append(line)
        else:
            line.drop()
        return reply

    def _rested(self) -> _Line | None:
        """The one that was used last: the others may be closed sooner."""
        oldest = asyncio.get_running_loop().time() - KEPT
        while self._resting:
            line = self._resting.pop()
            if line.can_rest() and line.rests_since > oldest:
                return line
            line.drop()
        return None

    async def _connect(self) -> _Line:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(
            lambda: _Line(loop), self._host, self._port, ssl=self._trust, happy_eyeballs_delay=EYEBALLS
        )
        self._all.add(line)
        line.gone.add_done_callback(lambda _: self._all.discard(line))
        return line
