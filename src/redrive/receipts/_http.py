"""An answer over HTTP/1.1, read as it comes in, in whatever pieces. No sockets, no clock; the parser is llhttp's."""

from __future__ import annotations

from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

HEAD_LIMIT = 64 * 1024
"""Bytes of status and headers, with those of interim answers."""
FRAMING = 8
"""An answer may take so many times the bytes that are wanted of it: chunks have sizes, extensions and trailers."""

Enough = Callable[["Reply"], bool]


class Garbled(ConnectionError):
    """Whoever answers there does not speak HTTP/1."""


class CutOff(EOFError):
    """The answer ended in the middle, or its body is none."""


class Reply:
    """`done`: all of it is there, or as much as `limit` or `enough` wants of the body.

    `headers` have their names in capitals and small letters: Content-Type. `reusable`: the connection is ready for the
    next question. `enough` is asked each time while a body comes in.
    """

    __slots__ = (
        "_body",
        "_came",
        "_enough",
        "_fault",
        "_limit",
        "_parser",
        "_size",
        "done",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self, limit: int, enough: Enough) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self.reusable = False
        self._limit = limit
        self._enough = enough
        self._body: list[bytes] = []
        self._size = 0
        self._came = 0
        self._fault = ""
        # It knows us and we know it: let go of when all is read, or it would live until the collector finds it.
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    @property
    def began(self) -> bool:
        """Whether anything of it came."""
        return self._came > 0

    @property
    def body(self) -> bytes:
        """As far as it is there, and wanted."""
        whole = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        return whole if self._size <= self._limit else whole[: self._limit]

    def feed(self, data: bytes) -> None:
        """Raises Garbled and CutOff."""
        parser, self._came = self._parser, self._came + len(data)
        if parser is None:
            self.reusable = False  # nobody asked for more
            return
        try:
            parser.feed_data(data)
        except HttpParserUpgrade:
            self._fault = "it switched to another protocol, unasked"
        except HttpParserError as error:
            self._fault = str(error)
        if self.done:
            self._end(reusable=self.reusable and not self._fault)
            return
        self._check()
        if self._body and self._enough(self):
            self._end(reusable=False)

    def _check(self) -> None:
        if not self.status:
            if self._fault or self._came > HEAD_LIMIT:
                raise Garbled(self._fault or f"its headers have more than {HEAD_LIMIT:,} bytes")
        elif self._fault or self._came > HEAD_LIMIT + FRAMING * self._limit:
            raise CutOff(self._fault or "it does not come to an end")

    def ended(self, error: Exception | None) -> None:
        """The connection was closed, or broke. Raises what that means, if it means anything."""
        if self.done:
            return
        if not self.status:
            raise error or ConnectionResetError("it closed the connection without an answer")
        if error is not None or not self.headers.keys().isdisjoint(("Content-Length", "Transfer-Encoding")):
            raise CutOff("it closed the connection")
        self._end(reusable=False)

    def _end(self, *, reusable: bool) -> None:
        self.done = True
        self.reusable = reusable
        self._parser = None

    # --- what the parser finds; an error here would reach nobody ---

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # later ones are trailers
            key, text = name.decode("latin-1").title(), value.decode("latin-1").strip()
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self.done or self._parser is None:
            self.reusable = False  # another answer, to nothing
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        packed = self.headers.get("Transfer-Encoding", "chunked")
        if packed.lower() != "chunked":
            self._fault = f"it sends its answer as {packed[:40]!r}, unasked"

    def on_body(self, data: bytes) -> None:
        if not self.done:
            self._body.append(data)
            self._size += len(data)
            self.done = self._size > self._limit

    def on_message_complete(self) -> None:
        if self.status and not self.done and self._parser is not None:
            self.done = True
            self.reusable = self._parser.should_keep_alive()
