"""From `postgresql://…` to a store: our options are taken out of the query, the rest goes to libpq as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlencode

from redrive.errors import BadStoreURL, ConfigError
from redrive.stores import packing
from redrive.stores.clock import Clock
from redrive.stores.postgres import options
from redrive.stores.postgres.store import PostgresStore


def store_of(parts: SplitResult, given: Mapping[str, str], clock: Clock | None) -> PostgresStore:
    # First, because what follows says names of options, and a part of a password might be taken for one.
    options.location(parts.geturl())
    ours = {name: _read(name, text) for name, text in given.items() if name in _OPTIONS}
    theirs = {name: text for name, text in given.items() if name not in _OPTIONS}
    for name in theirs:
        if name not in options.PASSED_ON:
            known = ", ".join(_OPTIONS)
            hint = f"postgresql takes: {known}, and what libpq knows, as sslmode"
            raise BadStoreURL(f"unknown option {name!r}", field="store", hint=hint)
    rest = parts._replace(scheme="", netloc="", query=urlencode(theirs, quote_via=quote)).geturl()
    # Put together by hand: where there is no host, urllib leaves out the slashes, and libpq wants them.
    return PostgresStore(f"postgresql://{parts.netloc}{rest}", clock=clock, **ours)


def _read(name: str, text: str) -> Any:
    field = f"store.{name}"
    try:
        return _OPTIONS[name](text, field)
    except ConfigError as error:
        raise BadStoreURL(error.message.removeprefix(f"{field}: "), field=field, hint=error.hint) from None


def _switch(text: str, field: str) -> bool:
    if text not in {"on", "off"}:
        raise BadStoreURL(f"{text!r} is neither on nor off", field=field, hint="off is for poolers: it only polls")
    return text == "on"


def _number(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadStoreURL(f"{text!r} is not a number", field=field, hint="for example pool=8")
    return options.check_pool(int(text), field=field)


_OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "schema": lambda text, field: options.check_schema(text, field=field),
    "pool": _number,
    "timeout": lambda text, field: f"{options.positive(text, field=field)}ms",
    "connect_timeout": lambda text, field: f"{options.positive(text, field=field)}ms",
    "notify": _switch,
    "poll": lambda text, field: f"{options.positive(text, field=field)}ms",
    "compress_above": lambda text, field: packing.threshold(text, field=field),
}
"""How each option is read: its text and its field in, what the store's parameter of that name takes out."""
