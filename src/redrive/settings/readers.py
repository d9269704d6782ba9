"""What a file, a variable or a flag says, as a checked value. Each reader names the fault, never a secret."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from redrive.core import durations, sizes
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.errors import BadSettings, ConfigError, MissingExtra

if TYPE_CHECKING:
    from redrive.stores.keyring import Keyring

Reader = Callable[[object, str], Any]
TELLING = re.compile(r"([?&][^=&]*(?:pass|secret|token|key|pwd)[^=&]*=)[^&]*", re.IGNORECASE)
"""An option whose name says that its value is not for everybody."""
HIDDEN = "…"


def as_is(value: Any) -> object:
    return value


def store(value: object, field: str) -> str:
    # Late: it knows every engine, and who only wants the log's level need not.
    from redrive.stores.url import store_from_url

    url = _text(value, field, "a store's URL", secret=True)
    try:
        store_from_url(url)
    except MissingExtra:
        # Whoever opens it says so; whoever never does is not to be troubled.
        return url
    return url


def without_password(url: str) -> str:
    """The URL as it may be shown. Options first: an @ in one of them must not be taken for the end of an address.

    Then all that stands before the last @: it may be a password with signs in it that were not encoded.
    """
    scheme, mark, rest = TELLING.sub(rf"\1{HIDDEN}", url).partition("://")
    before, at, after = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    return f"{scheme}{mark}{user}{f':{HIDDEN}' if colon else ''}{at}{after}"


def name(value: object, field: str) -> str:
    text = _text(value, field, "a name")
    if not text.isprintable():
        raise ConfigError(f"{shown(text)} has characters that cannot be shown", field=field, hint="use a short text")
    return text


def release(value: object, field: str) -> str:
    # Late: it knows every verb of a store.
    from redrive.stores.base import NAME_LIMIT

    if not isinstance(value, str) or not 1 <= len(value) <= NAME_LIMIT or not value.isprintable():
        hint = f"use 1 to {NAME_LIMIT} printable characters as text, such as '1.4.2', or leave it out"
        raise ConfigError(f"{shown(value)} is not a release", field=field, hint=hint)
    return value


def size(value: object, field: str) -> int:
    most = sizes.parse(value, field=field)  # type: ignore[arg-type]  # it says itself what it does not take
    if most < 1:
        raise ConfigError("nothing would fit", field=field, hint="use 1 byte or more")
    return most


def duration(value: object, field: str) -> Millis:
    return durations.parse(value, field=field)  # type: ignore[arg-type]  # as above


def some_time(value: object, field: str) -> Millis:
    millis = duration(value, field)
    if millis < 1:
        raise ConfigError(f"must be greater than 0, got {value!r}", field=field, hint="use a duration such as 30s")
    return millis


def duration_text(value: Millis) -> str:
    return durations.format(value)


def one_of(*words: str) -> Reader:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str) or value.lower() not in words:
            raise ConfigError(f"{shown(value)} is none of them", field=field, hint=f"use {', '.join(words)}")
        return value.lower()

    return read


def whole(least: int, most: int) -> Reader:
    def read(value: object, field: str) -> int:
        number = _integer(value)
        if number is None or not least <= number <= most:
            hint = f"use a whole number from {least:,} to {most:,}"
            raise ConfigError(f"{shown(value)} cannot be used", field=field, hint=hint)
        return number

    return read


def positive(value: object, field: str) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        number = 0.0
    if not 0 < number < math.inf:
        raise ConfigError(f"{shown(value)} cannot be used", field=field, hint="use a number above 0, such as 2.0")
    return number


def http_url(token: str) -> Callable[[object, str], str]:
    """`token`: the variable for the token, which does not belong into a URL."""

    def read(value: object, field: str) -> str:
        url = _text(value, field, "a URL", secret=True)
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
            has_user = parts.username is not None or parts.password is not None
        except ValueError:
            usable = has_user = False
        if has_user:
            hint = f"a token goes into {token}, or into a file that {token}_FILE names"
            raise ConfigError("it has a user or password in it", field=field, hint=hint)
        if not usable:
            said = f"{without_password(url)} cannot be used"
            raise ConfigError(said, field=field, hint="use a URL such as https://broker.example")
        return url

    return read


def address(value: object, field: str) -> str:
    """HOST:PORT, to listen on."""
    from redrive.net.urls import check_address

    check_address(value, field=field)
    return str(value).strip()


def networks(value: object, field: str) -> tuple[str, ...]:
    from redrive.net.guard import Guard

    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ConfigError(f"{shown(value)} is not a list of networks", field=field, hint='use ["10.1.0.0/16"]')
    try:
        return tuple([str(each) for each in Guard([str(part).strip() for part in parts]).allow])
    except ConfigError as error:
        raise error.named(field) from None


def token(value: object, field: str) -> str:
    text = _text(value, field, "a token", secret=True)
    if not text.isascii() or not text.isprintable() or " " in text:
        hint = "use the token alone, without Bearer and without quotes"
        raise ConfigError("it has characters that no header can carry", field=field, hint=hint)
    return text


def alert_channels(value: object, field: str) -> dict[str, Any]:
    """Raises BadSettings with all faults."""
    return _alerts("CHANNEL", value, field)


def alert_rules(value: object, field: str) -> dict[str, Any]:
    """Raises BadSettings with all faults."""
    return _alerts("RULE", value, field)


def _alerts(form: str, value: object, field: str) -> dict[str, Any]:
    if value == {}:
        return {}
    # Late: it knows the engine, and who has no alerts need not.
    from redrive.observe.alerts import tables

    try:
        given = json.loads(value) if isinstance(value, str) else value
        return tables.read_tables(given, field, getattr(tables, form))
    except json.JSONDecodeError as error:
        raise ConfigError(f"it is not JSON: {error}", field=field, hint="write an object of objects") from None
    except tables.Faults as found:
        raise BadSettings(tuple(found.texts)) from None


def in_words(value: dict[str, Any]) -> object:
    """Channels and rules without their secrets."""
    return {name: str(each) for name, each in value.items()}


def keyring(value: object, field: str) -> Keyring:
    # Late: it needs a package that few have, and nobody else does.
    from redrive.stores.keyring import Keyring

    return Keyring.parse(_text(value, field, "a list of keys", secret=True), field=field)


def key_ids(value: Keyring | None) -> object:
    """Never the keys."""
    return None if value is None else ", ".join(value.ids)


def hidden(_value: Any) -> object:
    return HIDDEN


def path(value: object, field: str) -> str:
    text = _text(value, field, "a path")
    if "\0" in text:
        raise ConfigError(f"{shown(text)} is not a path", field=field, hint="use a path as text")
    return text


def names(value: object, field: str) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        hint = "use a list of names, or text with commas between them"
        raise ConfigError(f"{shown(value)} are no names", field=field, hint=hint)
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise ConfigError("it names no queue", field=field, hint="as in emails,invoices; leave it out for all")
    return found


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        text = value.strip()
        # Longer ones are out of every range, and Python takes its time with them.
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: object, field: str, what: str, *, secret: bool = False) -> str:
    if not isinstance(value, str) or not value.strip():
        blank = "an empty text" if secret else shown(value)
        said = blank if isinstance(value, str) else f"a {type(value).__name__}"
        raise ConfigError(f"{said} is not {what}", field=field, hint=f"use {what} as text")
    return value.strip()
