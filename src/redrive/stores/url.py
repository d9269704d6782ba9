"""From `sqlite:///file` to a store: the one list of engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redrive.errors import BadStoreURL, ConfigError
from redrive.stores import packing
from redrive.stores.base import Store
from redrive.stores.clock import Clock, check_clock

FORMS = "memory:   sqlite:///relative/file.db   sqlite:////absolute/file.db   postgresql://user@host/database   redis://host:6379/0"

_REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
_SENTINEL = "give the address of the primary, or of a proxy that follows it, as redis://host:6379/0"
_CLUSTER = (
    "give the address of any node as redis://host:6379; a namespace is one slot, and its owner is found by itself"
)
_REDIS_INSTEAD = {
    **dict.fromkeys(("sentinel", "redis+sentinel", "rediss+sentinel", "valkey+sentinel"), _SENTINEL),
    **dict.fromkeys(("redis+cluster", "rediss+cluster", "valkey+cluster"), _CLUSTER),
}


def store_from_url(url: str, *, clock: Clock | None = None) -> Store:
    """Builds the store without touching it; `open` does that."""
    check_clock(clock)
    parts = _parts(url)
    options = _options(parts.query)
    if parts.scheme == "memory":
        return _memory(url, parts.path + parts.netloc, options, clock)
    if parts.scheme == "sqlite":
        return _sqlite(url, parts.netloc, unquote(parts.path), options, clock)
    if parts.scheme in {"postgresql", "postgres"}:
        from redrive.stores.postgres.url import store_of as postgres_store

        return postgres_store(parts, options, clock)
    if parts.scheme in _REDIS:
        from redrive.stores.redis.url import store_of as redis_store

        return redis_store(parts, options, clock)
    if parts.scheme in _REDIS_INSTEAD:
        raise BadStoreURL(f"{parts.scheme}:// is not supported", field="store", hint=_REDIS_INSTEAD[parts.scheme])
    what = f"unknown scheme {parts.scheme!r}" if parts.scheme else "it has no scheme"
    raise BadStoreURL(f"{_safe(url)!r}: {what}", field="store", hint=f"use one of: {FORMS}")


def url_of_client(client: object, namespace: str | None = None) -> str:
    """The store URL of a redis-py or valkey-py client. Raises ConfigError if a URL cannot carry its settings."""
    from redrive.stores.redis.client_url import client_url

    return client_url(client, namespace)


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        # What it says may be part of a password.
        raise BadStoreURL("it is not a URL", field="store", hint=f"use one of: {FORMS}") from None
    if parts.fragment or url.endswith("#"):
        raise BadStoreURL(f"{_safe(url)!r} has a #, which ends a URL", field="store", hint="write %23 for it")
    if parts.netloc and "@" not in parts.netloc and "@" in parts.path + parts.query:
        # What stands before the @ is a password with a / or a ? in it.
        hint = "percent-encode what is special in a password or an option, as %40 for @, %2F for /, %3F for ?"
        raise BadStoreURL("the address ends before an @", field="store", hint=hint)
    if "\0" in unquote(url):
        raise BadStoreURL(f"{_safe(url)!r} has a NUL character", field="store", hint=f"use one of: {FORMS}")
    return parts


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in options:
            raise BadStoreURL(f"the option {name!r} is there twice", field="store", hint="say it once")
        options[name] = value
    return options


def _memory(url: str, rest: str, options: dict[str, str], clock: Clock | None) -> Store:
    if rest or options:
        raise BadStoreURL(f"{_safe(url)!r}: memory takes no path and no options", field="store", hint="use memory:")
    from redrive.stores.memory import MemoryStore

    return MemoryStore(clock=clock)


def _sqlite(url: str, host: str, path: str, options: dict[str, str], clock: Clock | None) -> Store:
    if host or not path.strip("/") or path.endswith("/"):
        hint = (
            "three slashes for a relative path, four for an absolute one: sqlite:///file.db, sqlite:////var/lib/file.db"
        )
        raise BadStoreURL(f"{_safe(url)!r} names no file", field="store", hint=hint)
    if path.strip("/") == ":memory:":
        raise BadStoreURL(f"{_safe(url)!r} would be a file of that name", field="store", hint="use memory:")
    from redrive.stores.sqlite import SqliteStore

    known = _sqlite_options()
    for name in options:
        if name not in known:
            raise BadStoreURL(f"unknown option {name!r}", field="store", hint=f"sqlite takes: {', '.join(known)}")
    given: dict[str, Any] = {name: known[name](f"store.{name}", text) for name, text in options.items()}
    return SqliteStore(Path(path.removeprefix("/")), clock=clock, **given)


def _one_of(*words: str) -> Callable[[str, str], str]:
    def read(field: str, text: str) -> str:
        if text not in words:
            name = field.rpartition(".")[2]
            raise BadStoreURL(f"{text!r} is not a {name}", field=field, hint=f"use one of {', '.join(words)}")
        return text

    return read


def _size(parse: Callable[..., int | None]) -> Callable[[str, str], int | None]:
    def read(field: str, text: str) -> int | None:
        try:
            return parse(text, field=field)
        except ConfigError as error:
            raise BadStoreURL(error.message.removeprefix(f"{field}: "), field=field, hint=error.hint) from None

    return read


def _sqlite_options() -> dict[str, Callable[[str, str], Any]]:
    """How each option is read: its field and its text in, what the store's parameter of that name takes out."""
    from redrive.stores.sqlite import ballast, ground

    return {
        "durability": _one_of("power-loss", "process-crash"),
        "binding": _one_of("auto", "stdlib", "apsw"),
        "network": _one_of(*ground.CHOICES),
        "ballast": _size(ballast.parse),
        "compress_above": _size(packing.threshold),
    }


def _safe(url: str) -> str:
    """Without the password, wherever it stands: it may have signs that end an address, and options may have one too."""
    if "@" not in url and "=" not in url.partition("?")[0]:
        return url.partition("?")[0]
    scheme, mark, _ = url.partition("://")
    return f"{scheme}://…" if mark else "…"
