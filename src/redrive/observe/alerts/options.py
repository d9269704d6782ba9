"""Validation of the options of conditions, channels and rules, for code and settings alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from importlib.util import find_spec
from typing import Any, cast

from msgspec.structs import replace

from redrive.core.durations import Duration, parse, positive
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.core.schedule import zone
from redrive.engine.registry import check_queue_name
from redrive.errors import ConfigError, MissingExtra
from redrive.net.urls import check_http_url, check_token
from redrive.observe.alerts.model import DURATIONS, LONGEST, SECRETS, SEVERITIES, Channel, Condition, Rule, Severity
from redrive.office.settings import check_name

_HOURS = r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)"
_HOST = r"[A-Za-z0-9._:-]{1,253}"
TLS = ("starttls", "tls", "none")


def checked(**options: Any) -> dict[str, Any]:
    """The options in their normal form. Raises ConfigError for the first invalid one."""
    return {name: _CHECKS[name](value, name) for name, value in options.items()}


def _url(value: object, field: str) -> str:
    if find_spec("aiohttp") is None:
        hint = 'pip install "redrive[http]"'
        raise MissingExtra("the package aiohttp is needed for channels over HTTP", field=field, hint=hint)
    return check_http_url(value, field=field, secret="a part of the path or query").geturl()  # noqa: S106 - for the error


def _token(value: object, field: str) -> str:
    token = check_token(value, field=field)
    if not token or " " in token:
        raise ConfigError("must not be empty or contain blanks", field=field, hint="copy it whole, without quotes")
    return token


def _password(value: object, field: str) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError("must be a non-empty text", field=field, hint="leave it out to send without a login")
    return value


def _text(value: object, field: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # the id of a chat
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"{shown(value)} is not a text", field=field, hint="use a short text in one line")
    return value.strip()


def _optional_text(value: object, field: str) -> str | None:
    return None if value is None else _text(value, field)


def _host(value: object, field: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(_HOST, value):
        raise ConfigError(f"{shown(value)} is not a host", field=field, hint="use a name such as smtp.example.com")
    return value


def _address(value: object, field: str) -> str:
    text = _text(value, field)
    if "@" not in text or " " in text or not text.isascii():
        raise ConfigError(f"{shown(text)} is not an address", field=field, hint="as in ops@example.com")
    return text


def _addresses(value: object, field: str) -> tuple[str, ...]:
    return tuple([_address(each, field) for each in _texts(value, field)])


def _texts(value: object, field: str, least: int = 1) -> tuple[str, ...]:
    """One text or several."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, Iterable) or isinstance(several, bytes | Mapping):
        raise ConfigError(f"{shown(value)} is not a list of texts", field=field, hint='as in ["ops"]')
    found = tuple([_text(each, field) for each in several])
    if len(found) < least:
        raise ConfigError("it is empty", field=field, hint="name at least one")
    return tuple(dict.fromkeys(found))


def _argv(value: object, field: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        hint = 'give the program and its arguments as a list: ["/usr/bin/page", "--ops"]; no shell reads it'
        raise ConfigError(f"{shown(value)} is not a list", field=field, hint=hint)
    found = tuple(value)
    if not found or not all(isinstance(each, str) and "\0" not in each for each in found) or not found[0].strip():
        raise ConfigError(f"{shown(value)} is not a command", field=field, hint='as in ["/usr/bin/page", "--ops"]')
    return found


def _share(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"{shown(value)} is not a share", field=field, hint="use a number above 0 and up to 1")
    return float(value)


def _whole(least: int, most: int) -> Callable[[object, str], int]:
    def check(value: object, field: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            hint = f"use a whole number from {least:,} to {most:,}"
            raise ConfigError(f"{shown(value)} cannot be used", field=field, hint=hint)
        return value

    return check


def _function(value: object, field: str) -> Callable[..., Any]:
    if not callable(value):
        raise ConfigError(f"{shown(value)} is not a function", field=field, hint="give a function, async or not")
    return value


def _word(*words: str) -> Callable[[object, str], str]:
    def check(value: object, field: str) -> str:
        if value not in words:
            raise ConfigError(f"{shown(value)} is unknown", field=field, hint=f"use one of {', '.join(words)}")
        return str(value)

    return check


def _duration(value: Any, field: str) -> Millis:
    return positive(value, field=field)


def _timeout(value: Any, field: str) -> Millis:
    if (millis := positive(value, field=field)) > LONGEST:
        hint = "an attempt may take 1m; let the program start longer work in the background"
        raise ConfigError(f"must be at most 1m, got {shown(value)}", field=field, hint=hint)
    return millis


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(DURATIONS, _duration),
    "timeout": _timeout,
    **dict.fromkeys(SECRETS, _token),
    "url": _url,
    "password": _password,
    "below": _share,
    "above": _share,
    "least": _whole(1, 1_000_000),
    "more_than": _whole(0, 9_999),
    "kinds": _texts,
    "function": _function,
    "chat": _text,
    "host": _host,
    "port": _whole(1, 65_535),
    "sender": _address,
    "to": _addresses,
    "user": _optional_text,
    "tls": _word(*TLS),
    "argv": _argv,
}


# --- options of rules and channels ---


def channel_of(
    channel: Channel, quiet: str | None = None, timezone: str | tzinfo | None = None, digest: Duration = 0
) -> Channel:
    return replace(
        channel, quiet=_quiet_hours(quiet), timezone=_zone_name(timezone), digest=parse(digest, field="digest")
    )


def rule_of(
    name: str,
    when: Condition,
    *,
    to: str | Iterable[str],
    queues: str | Iterable[str] = (),
    members: bool = False,
    for_: Duration | None = None,
    severity: str | None = None,
    repeat: Duration | None = "4h",
) -> Rule:
    given: object = when
    if not isinstance(given, Condition):
        hint = "use a condition such as redrive.observe.alerts.oldest_letter('1h')"
        raise ConfigError(f"{shown(when)} is not a condition", field="when", hint=hint)
    usual = "critical" if when.kind == "store_down" else "warning"
    return Rule(
        check_name(name, "rule"),
        when,
        _texts(to, "to"),
        tuple([_queue(each) for each in _texts(queues, "queues", least=0)]),
        bool(members),
        when.lasting if for_ is None else parse(for_, field="for_"),
        cast("Severity", _word(*SEVERITIES)(severity or usual, "severity")),
        None if repeat is None else positive(repeat, field="repeat"),
    )


def _queue(name: str) -> str:
    try:
        return check_queue_name(name)
    except ConfigError as error:
        raise ConfigError(error.message.removeprefix("queue: "), field="queues", hint=error.hint) from None


def _quiet_hours(value: object) -> tuple[int, int] | None:
    found = re.fullmatch(_HOURS, value) if isinstance(value, str) else None
    if value is None:
        return None
    hours = [] if found is None else [int(each) for each in found.groups()]
    if not hours or hours[:2] == hours[2:]:
        raise ConfigError(f"{shown(value)} is not a range of hours", field="quiet", hint="as in 22:00-07:00")
    return hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]


def _zone_name(value: str | tzinfo | None) -> str:
    name = "UTC" if value is None else value if isinstance(value, str) else getattr(value, "key", "")
    zone(str(name))
    return str(name)
