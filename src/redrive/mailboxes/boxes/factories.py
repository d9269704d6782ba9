"""Mailboxes by the store they are on."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

from redrive.blocking.shared_store import Store
from redrive.core.durations import Duration
from redrive.core.validation import check_optional, check_path, check_type
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes.mailbox import StoreMailbox
from redrive.mailboxes.boxes.resolver import MailboxResolver
from redrive.mailboxes.validation import as_parameter
from redrive.stores.clock import Clock
from redrive.stores.keyring import Keyring
from redrive.stores.url import url_of_client

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_TTL = 259_200
"""Seconds: three days."""
_FOR = {
    "memory": "InMemoryMailbox",
    "sqlite": "SQLiteMailbox",
    **dict.fromkeys(("postgresql", "postgres"), "PostgresMailbox"),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix"), "RedisMailbox"),
}
"""Which mailbox a URL is for, by its scheme."""


def _check_url(url: object, own: str, such: str, *, field: str = "url") -> None:
    """Refuse the URL of another kind of store; an unknown scheme is refused where the URL is read."""
    check_type(url, str, field=field, hint=f"give {such}")
    scheme = str(url).partition(":")[0].lower()
    other = _FOR.get(scheme, own)
    if other != own:
        # Not the URL itself: it may have a password.
        hint = f"use {other} for it, or give {such}"
        raise InvalidParameterError(f"a {own} cannot be at {scheme}:", field=field, hint=hint)


class Options(TypedDict, total=False):
    """What every mailbox takes by name; see StoreMailbox."""

    body_type: Any
    clock: Clock | None
    resolver: MailboxResolver | None
    default_ttl: float | None
    max_size: int | None
    keep: Duration | None
    dead_letters: bool
    on_expire: Literal["letter", "cancel"]
    encryption: Keyring | None


def open_mailbox(
    name: str, url: str | Store = "sqlite:///redrive.db", **options: Unpack[Options]
) -> StoreMailbox[Any, Any]:
    """A mailbox on any store, by its URL; `options` are those of StoreMailbox."""
    return StoreMailbox(name, url, **options)


class InMemoryMailbox(StoreMailbox[T, R]):
    """In the memory of this process. Mailboxes with the same clock share one store, as long as one of them is there."""

    def __init__(self, name: str, **options: Unpack[Options]) -> None:
        super().__init__(name, "memory:", **options)


class SQLiteMailbox(StoreMailbox[T, R]):
    """In a file, shared by all processes of this machine. `path` may also be a URL, for its options."""

    def __init__(self, name: str, path: str | os.PathLike[str] = "redrive.db", **options: Unpack[Options]) -> None:
        check_path(path, field="path", hint="give the name of a file")
        url = os.fspath(path)
        if "://" in url or url == "memory:":
            _check_url(url, "SQLiteMailbox", "the name of a file", field="path")
        super().__init__(name, url if url.startswith("sqlite:") else f"sqlite:///{quote(url)}", **options)


class PostgresMailbox(StoreMailbox[T, R]):
    """`url` as in postgresql://user@host/database"""

    def __init__(self, name: str, url: str, **options: Unpack[Options]) -> None:
        _check_url(url, "PostgresMailbox", "a URL such as postgresql://user@host/database")
        super().__init__(name, url, **options)


class RedisMailbox(StoreMailbox[T, R]):
    """On the server of `client`, which is a client of redis-py or valkey-py, synchronous or not, or at `url`.

    Only the client's connection settings are used: the mailbox has connections of its own. Messages live for three days
    if no `default_ttl` is given; dead letters, until they are removed.
    """

    _usual_ttl = DEFAULT_TTL

    def __init__(
        self,
        name: str,
        client: Any = None,
        *,
        url: str | None = None,
        namespace: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_optional(namespace=(namespace, str, "give a text, or leave it out"))
        if url is not None:
            _check_url(url, "RedisMailbox", "a URL such as redis://host:6379/0")
        super().__init__(name, _redis_url(client, url, namespace), **options)


def _redis_url(client: Any, url: str | None, namespace: str | None) -> str:
    if (client is None) == (url is None):
        hint = 'as in RedisMailbox(name="requests", client=redis.Redis())'
        raise InvalidParameterError("give a client or a url, and not both", field="client", hint=hint)
    if url is None:
        return as_parameter(lambda given: url_of_client(given, namespace), client)
    if namespace is None:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'namespace': namespace})}"
