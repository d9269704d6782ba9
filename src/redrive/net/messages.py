"""Checks of HTTP headers that are sent or forwarded, and status ranges. Needs no HTTP client."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from redrive.core.quantity import shown
from redrive.errors import ConfigError

HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "accept-encoding", "expect"),
    )
)
"""Headers of one connection, in lower case: they are not forwarded."""
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
HEADER_SIZE = 4096


def of_connection(name: str) -> bool:
    """Whether a header belongs to one connection, so that only the HTTP client may set it."""
    return name.lower() in HOP_BY_HOP or name.lower().startswith("proxy-")


def check_headers(headers: Iterable[tuple[str, str]], *, field: str, reserved: tuple[str, ...] = ()) -> None:
    """Raises ConfigError that names the header, and not its value, which may be a secret."""
    for name, value in headers:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{shown(name)} is not a header name", field=field, hint="use a name such as X-Team")
        if not value.isascii() or not value.isprintable() or len(value) > HEADER_SIZE:
            hint = f"use at most {HEADER_SIZE:,} printable ASCII characters"
            raise ConfigError(f"the value of {name} cannot be sent in a header", field=field, hint=hint)
        if of_connection(name) or name.lower().startswith(reserved):
            raise ConfigError(f"{name} is set by redrive or by the connection", field=field, hint="leave it out")


def passed_on(headers: Iterable[tuple[str, str]], without: Iterable[str] = ()) -> list[tuple[str, str]]:
    """The headers of a request that are forwarded: not those of a connection, nor `without`."""
    pairs = [(name.lower(), (name, value)) for name, value in headers]
    gone = {each.lower() for each in without}
    for name, (_, value) in pairs:
        if name == "connection":
            gone.update(each.strip() for each in value.lower().split(","))
    return [pair for name, pair in pairs if name not in HOP_BY_HOP and name not in gone]


_RANGE = re.compile(r"[1-5](xx|[0-9]{2})")


def is_status_range(text: Any) -> bool:
    """A status such as "404", or a class such as "5xx"."""
    return isinstance(text, str) and _RANGE.fullmatch(text) is not None


def in_ranges(status: int, ranges: Iterable[str]) -> bool:
    text = str(status)
    return any(each in (text, f"{text[0]}xx") for each in ranges)
