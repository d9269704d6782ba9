"""From `redis://host:6379/0` to a store. Nothing it says shows a password, also where it stands in the wrong place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, unquote

from redrive.core import durations
from redrive.errors import BadStoreURL, ConfigError
from redrive.stores.clock import Clock
from redrive.stores.redis import options as said
from redrive.stores.redis.store import RedisStore

FORM = "redis://[[user]:password@]host[:6379][/0]   rediss://… (TLS)   unix:///run/redis.sock?db=0"

_TLS = ("rediss", "valkeys")
_SECRETS = "percent-encode what is special in a password, as %40 for @ and %2F for /"


def store_of(parts: SplitResult, options: Mapping[str, str], clock: Clock | None) -> RedisStore:
    known = _known(parts.scheme)
    for name in options:
        if name not in known:
            raise BadStoreURL(
                f"unknown option {name!r}", field="store", hint=f"{parts.scheme} takes: {', '.join(known)}"
            )
    given: dict[str, Any] = {name: known[name](f"store.{name}", text) for name, text in options.items()}
    tls = {name: given.pop(name) for name in tuple(given) if name.startswith("ssl_")}
    if "ssl_keyfile" in tls and "ssl_certfile" not in tls:
        raise BadStoreURL("a key without its certificate", field="store.ssl_keyfile", hint="give ssl_certfile as well")
    if parts.scheme in _TLS:
        given["tls"] = tls
    where = _socket(parts) if parts.scheme == "unix" else _server(parts)
    return RedisStore(**where, **_user(parts), clock=clock, **given)


def _server(parts: SplitResult) -> dict[str, Any]:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise BadStoreURL("the port is not a number from 1 to 65535", field="store", hint=_SECRETS)
    path = parts.path.strip("/")
    if path and not (path.isascii() and path.isdecimal()):
        raise BadStoreURL(
            "what follows the host is the number of a database, as in redis://host:6379/0", field="store", hint=_SECRETS
        )
    return {"host": parts.hostname or "localhost", "port": port or said.PORT, "db": int(path or 0)}


def _socket(parts: SplitResult) -> dict[str, Any]:
    if parts.hostname or not parts.path.strip("/"):
        raise BadStoreURL("it names no socket", field="store", hint="three slashes: unix:///run/redis.sock?db=0")
    return {"path": unquote(parts.path)}


def _user(parts: SplitResult) -> dict[str, Any]:
    return {
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
    }


def _reader(check: Callable[[str], Any]) -> Callable[[str, str], Any]:
    def read(field: str, text: str) -> Any:
        try:
            return check(text)
        except ConfigError as error:
            raise BadStoreURL(error.message.partition(": ")[2], field=field, hint=error.hint) from None

    return read


def _duration(name: str) -> Callable[[str, str], durations.Duration]:
    return _reader(lambda text: (said.positive(text, field=name), text)[1])


def _number(check: Callable[[int], int], what: str) -> Callable[[str, str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConfigError(f"{text!r} is not a number", field=what, hint="use digits")
        return check(int(text))

    return _reader(read)


def _truth(field: str, text: str) -> bool:
    words = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if text.lower() not in words:
        raise BadStoreURL(f"{text!r} is neither yes nor no", field=field, hint="use yes or no")
    return words[text.lower()]


def _text(_: str, text: str) -> str:
    return text


def _requirement(field: str, text: str) -> str:
    if text not in ("required", "optional", "none"):
        raise BadStoreURL(f"{text!r} is not a requirement", field=field, hint="use one of required, optional, none")
    return text


_OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "namespace": _reader(said.check_namespace),
    "timeout": _duration("timeout"),
    "connect_timeout": _duration("connect_timeout"),
    "poll": _duration("poll"),
    "pool": _number(said.check_pool, "pool"),
    "compress_above": _reader(lambda text: (said.threshold(text), text)[1]),
}
"""How each option is read: its field and its text in, what the store's parameter of that name takes out."""

_TLS_OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "ssl_ca_certs": _text,
    "ssl_ca_path": _text,
    "ssl_certfile": _text,
    "ssl_keyfile": _text,
    "ssl_password": _text,
    "ssl_ciphers": _text,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": _truth,
}


def _known(scheme: str) -> dict[str, Callable[[str, str], Any]]:
    if scheme in _TLS:
        return {**_OPTIONS, **_TLS_OPTIONS}
    return {**_OPTIONS, "db": _number(said.check_db, "db")} if scheme == "unix" else _OPTIONS
