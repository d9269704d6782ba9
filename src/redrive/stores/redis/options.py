"""Where the server is and how it is used: everything that a URL can say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from redrive.core import durations, sizes
from redrive.core.item import Millis
from redrive.errors import ConfigError
from redrive.stores import packing

NAMESPACE = "redrive"
PORT = 6379
TIMEOUT = "10s"
CONNECT_TIMEOUT = "5s"
POLL = "1s"
POOL = 8
MOST_CONNECTIONS = 1_000

_NAMESPACE = re.compile(r"[^\s{}\0]{1,200}")


@dataclass(frozen=True)
class Address:
    """One server: a host and a port, or the path of a socket."""

    host: str = "localhost"
    port: int = PORT
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


@dataclass(frozen=True)
class Options:
    """`tls`: None without it, else what the URL says of it (ssl_*)."""

    address: Address
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] | None = field(default=None, repr=False)
    namespace: str = NAMESPACE
    timeout: Millis = 10_000
    connect_timeout: Millis = 5_000
    poll: Millis = 1_000
    pool: int = POOL
    compress_above: int = sizes.MAX

    @property
    def prefix(self) -> str:
        """Of all keys. What stands in braces decides the slot, so a namespace is in one place of a cluster."""
        return f"{{{self.namespace}}}:"

    @property
    def location(self) -> str:
        """For people: never with a password."""
        if self.address.path:
            return f"unix://{self.address}?db={self.db}&namespace={self.namespace}"
        return f"redis{'' if self.tls is None else 's'}://{self.address}/{self.db}?namespace={self.namespace}"

    def at(self, address: Address) -> Options:
        return replace(self, address=address)


def check_namespace(name: str) -> str:
    if not _NAMESPACE.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a namespace", field="namespace", hint="use a name without blanks and braces"
        )
    return name


def check_pool(size: int) -> int:
    if isinstance(size, bool) or not 1 <= size <= MOST_CONNECTIONS:
        raise ConfigError(
            f"{size!r} is not a number of connections", field="pool", hint=f"use a number from 1 to {MOST_CONNECTIONS}"
        )
    return size


def check_db(number: int) -> int:
    if isinstance(number, bool) or number < 0:
        raise ConfigError(f"{number!r} is not the number of a database", field="db", hint="use 0, as in redis://host/0")
    return number


def positive(value: durations.Duration, *, field: str) -> Millis:
    millis = durations.parse(value, field=field)
    if millis == 0:
        raise ConfigError("must not be zero", field=field, hint='use a duration such as "10s"')
    return millis


def threshold(value: sizes.Size | None) -> int:
    above = packing.threshold(value)
    return sizes.MAX if above is None else above
