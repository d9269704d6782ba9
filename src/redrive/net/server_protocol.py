"""HTTP/1.1 protocol of the server: uvicorn's, with limits on request heads and idle connections.

The head of a request is bounded in time and in size: a slow connection is closed, a large head answered 431. With too
many connections an idle one is closed, so that silent clients cannot keep others out. A request that asks for HTTP/2
is served by HTTP/1.1: uvicorn would lose its body.
"""

from __future__ import annotations

import asyncio

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_WITHIN = 10.0
"""Timeout in seconds of a request's head, and of the rest of a body after its request was answered."""
HEAD_LIMIT = 64 * 1024
"""Bytes of a head, of trailers, and of the framing between chunks of a body."""
CONNECTIONS = 1_000
"""Concurrent connections; beyond them the one that is idle for longest is closed."""
UPGRADE = frozenset((b"upgrade", b"connection", b"http2-settings"))
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Protocol(HttpToolsProtocol):
    _in_head = True
    _overhead = 0
    _refused = False
    _deadline: asyncio.TimerHandle | None = None
    since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent
        super().connection_made(transport)
        self._enter(head=True, timed=True)
        if len(self.connections) > CONNECTIONS:
            idle = [each for each in self.connections if isinstance(each, Protocol) and each.idle and each is not self]
            if idle:
                min(idle, key=lambda each: each.since).transport.abort()

    @property
    def idle(self) -> bool:
        """No request is under way. `since` is the time when the current head or body began."""
        return self._in_head and getattr(self.cycle, "response_complete", True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter(head=True, timed=False)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head and self._deadline is None:
            self._enter(head=True, timed=True)
        self._overhead += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self._refused:
                self.send_400_response("Invalid HTTP request received.")
        if self._overhead > HEAD_LIMIT and not self._refused:
            self._refuse()

    def _feed(self, data: bytes) -> None:
        """After a head with an upgrade the parser ends: another parser gets that head without it, and the rest."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            method, rest = self.parser.get_method(), data[upgrade.args[0] :]
            if method == b"CONNECT":
                raise
            lines = [name + b": " + value + b"\r\n" for name, value in self.headers if name not in UPGRADE]
            self.parser = HttpRequestParser(self)
            self.parser.feed_data(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self.url, b"".join(lines), rest))

    def on_headers_complete(self) -> None:
        if len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers]) > HEAD_LIMIT:
            self._refuse()
            raise ValueError("the head is too large")  # which ends the parsing
        if not self.parser.should_upgrade():
            self._enter(head=False, timed=False)
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._enter(head=True, timed=False)
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head:  # a client that is still sending would lose the answer if this closed at once
            self._enter(head=False, timed=True)

    def _enter(self, *, head: bool, timed: bool) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEAD_WITHIN, self.transport.abort) if timed else None
        self._in_head, self._overhead, self.since = head, 0, self.loop.time()

    def _refuse(self) -> None:
        """Answers 431 and closes after a delay: a client that is still sending would lose the answer otherwise."""
        self._refused = True
        if self.idle:
            self.transport.write(TOO_LARGE)
            self.transport.write_eof()
            self._enter(head=True, timed=True)
        else:
            self.transport.abort()
