"""Checks of HTTP headers that are sent or forwarded, and status ranges. Needs no HTTP client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
Pairs = tuple[tuple[str, str], ...]


def of_connection(name: str) -> bool:
    """Whether a header belongs to one connection, so that only the HTTP client may set it."""
    return name.lower() in HOP_BY_HOP or name.lower().startswith("proxy-")


def check_headers(given: Any, *, field: str, reserved: tuple[str, ...] = ()) -> Pairs:
    """A mapping, as pairs that `check_pairs` lets pass."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"must be a mapping, got {shown(given)}", field=field, hint='use {"X-Team": "billing"}')
    headers = tuple([(str(name), str(value)) for name, value in given.items()])
    check_pairs(headers, field=field, reserved=reserved)
    return headers


def check_pairs(headers: Pairs, *, field: str, reserved: tuple[str, ...] = ()) -> None:
    """Raises ConfigError that names the header, and not its value, which may be a secret. `reserved`: how names begin
    that are not the user's.
    """
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


def check_error_statuses(given: Any, field: str) -> tuple[str, ...]:
    """Statuses such as 404, and classes such as "5xx", of answers that are errors or redirects."""
    hint = 'give statuses such as 404 or "5xx"'
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"must be a list, got {shown(given)}", field=field, hint=hint)
    found = tuple([str(each) for each in given])
    for each in found:
        if not re.fullmatch(r"[1-5](xx|[0-9]{2})", each):
            raise ConfigError(f"{shown(each)} is not a status", field=field, hint=hint)
        if each[0] in "12":
            what = "a success" if each[0] == "2" else "no answer yet"
            raise ConfigError(f"{each} is {what}, and cannot be judged otherwise", field=field, hint=hint)
    return found


def in_ranges(status: int, ranges: Iterable[str]) -> bool:
    text = str(status)
    return any(each in (text, f"{text[0]}xx") for each in ranges)
