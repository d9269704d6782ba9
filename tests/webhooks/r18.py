"""R18: what a target may answer, and what becomes of the webhook. docs/webhooks.md publishes these rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redrive.core import durations
from redrive.webhooks.delivery import POLICY
from tests.webhooks.receiver import Script, endless, raw, reset, silence, status, trickle

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n\r\n"
TEN_YEARS = 315_360_000
NOTHING = status(200)
"""For rows whose request does not get so far."""

Target = Literal["plain", "tls", "http as tls", "silence as tls", "no name", "private", "closed"]

OK = "2xx"
LONG = "2xx with a longer body than 64 KiB: the rest is not read"
PACKED = "2xx with a packed body, unasked: it is kept as it is"
MOVED = "3xx: redirects are not followed"
REFUSED = "4xx, but for the rows below"
GONE = "410: the endpoint is disabled, too"
LATER = "408, 425, 429, 5xx"
ASKED = "the same with `Retry-After`, in seconds or as a date"
LONGEST = POLICY.max_hint // 1000
ASKED_LONG = f"the same, of more than {durations.format(POLICY.max_hint)}"
ASKED_OTHERWISE = "the same, negative, in the past or unreadable"
NO_CONNECTION = "no connection: the name, the port or TLS fails"
PRIVATE = "no request: the address is not public, and not allowed"
ENDED = "the connection ends before the answer does"
SLOW = "no whole answer within the timeout of the endpoint"
NO_HTTP = "an answer that is not HTTP/1, or whose headers are too long"


@dataclass(frozen=True)
class Row:
    """`after`: seconds from the first attempt to the second; None: there is none. `said`: in the error."""

    name: str
    answer: str
    script: Script
    status: Literal["delivered", "failed", "pending"] = "pending"
    after: int | None = 1
    said: str = ""
    target: Target = "plain"

    @property
    def path(self) -> str:
        return self.name.replace(" ", "-")


def _delivered(name: str, answer: str, script: Script) -> Row:
    return Row(name, answer, script, "delivered", None)


def _failed(number: int, answer: str, *headers: str) -> Row:
    return Row(f"{number}", answer, status(number, *headers), "failed", None, f"answered {number}")


def _later(number: int, answer: str = LATER, after: int = 1, *, asked: str = "") -> Row:
    name = f"{number} {asked[:40]}".strip().replace(":", "").replace(",", "")
    headers = [f"Retry-After: {asked}"] if asked else []
    return Row(name, answer, status(number, *headers), after=after, said=f"answered {number}")


ROWS = (
    _delivered("200", OK, status(200, body=b"thanks")),
    _delivered("204", OK, status(204)),
    _delivered("endless body", LONG, endless(OPEN)),
    _delivered("packed", PACKED, status(200, "Content-Encoding: gzip", body=b"\x1f\x8b not really")),
    _failed(301, MOVED, "Location: http://elsewhere.example/"),
    _failed(307, MOVED, "Location: /307"),  # to itself, without end
    *(_failed(number, REFUSED) for number in (400, 401, 403, 404, 405, 409, 413, 422)),
    _failed(410, GONE),
    *(_later(number) for number in (408, 425, 429, 500, 502, 503, 504)),
    _later(429, ASKED, 120, asked="120"),
    _later(429, ASKED, 120, asked="Thu, 01 Jan 2026 00:02:00 GMT"),
    _later(503, ASKED, 300, asked="300"),
    _later(429, ASKED_LONG, LONGEST, asked=f"{TEN_YEARS}"),
    _later(503, ASKED_LONG, LONGEST, asked="Wed, 31 Dec 2035 00:00:00 GMT"),
    _later(429, ASKED_OTHERWISE, asked="-5"),
    _later(429, ASKED_OTHERWISE, asked="soon"),
    _later(503, ASKED_OTHERWISE, asked="Wed, 31 Dec 2025 00:00:00 GMT"),
    _later(503, ASKED_OTHERWISE, asked="Fri, 31 Dec 99999999999 00:00:00 GMT"),
    Row("no such name", NO_CONNECTION, NOTHING, said="nowhere.invalid", target="no name"),
    Row("private address", PRIVATE, NOTHING, "failed", None, "leads to 10.0.0.1", target="private"),
    Row("closed port", NO_CONNECTION, NOTHING, said="ConnectionRefusedError", target="closed"),
    Row("bad certificate", NO_CONNECTION, NOTHING, said="certificate verify failed", target="tls"),
    Row("HTTP where TLS should be", NO_CONNECTION, NOTHING, said="WRONG_VERSION_NUMBER", target="http as tls"),
    Row("reset at once", ENDED, reset()),
    Row("closed at once", ENDED, raw(b"")),
    Row("reset in the headers", ENDED, reset(b"HTTP/1.1 200 OK\r\nContent-Le")),
    Row("closed in the headers", ENDED, raw(b"HTTP/1.1 200 OK\r\nContent-Le")),
    Row("reset in the body", ENDED, reset(HEAD + b"half")),
    Row("closed in the body", ENDED, raw(HEAD + b"half")),
    Row("chunks that are none", ENDED, raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nno")),
    Row("no answer", SLOW, silence(), said="no answer within"),
    Row("no answer to TLS", SLOW, NOTHING, said="no answer within", target="silence as tls"),
    Row("headers and no body", SLOW, silence(HEAD), said="no answer within"),
    Row("byte by byte", SLOW, trickle(HEAD), said="no answer within"),
    Row("1xx without end", SLOW, silence(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000), said="no answer within"),
    Row("another protocol", NO_HTTP, raw(b"SSH-2.0-OpenSSH_9.6\r\n")),
    Row("HTTP 0.9", NO_HTTP, raw(b"thanks")),
    Row("no status", NO_HTTP, raw(b"HTTP/1.1 2OO OK\r\nContent-Length: 0\r\n\r\n")),
    Row("a long header", NO_HTTP, raw(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100 * 1024 + b"\r\n\r\n")),
    Row("many headers", NO_HTTP, raw(b"HTTP/1.1 200 OK\r\n" + b"X-Many: x\r\n" * 1000 + b"\r\n")),
)
