"""What callers may ask for, and the error for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeGuard, TypeVar

from redrive.core import durations
from redrive.core.item import Millis, Priority
from redrive.core.quantity import shown
from redrive.engine.client import check_id
from redrive.engine.registry import check_queue_name
from redrive.errors import ConfigError, InvalidParameterError

A = TypeVar("A")

LONGEST_VISIBILITY = 43_200
LEAST_TO_WORK = 1
"""Seconds. What is received with less comes again while it is worked on, and no end of it would ever count."""
MOST_MESSAGES = 10
LONGEST = durations.MAX // 1000
_TEXTS = "give texts by name, as {'tenant': 'acme'}"


def kind(given: object, wanted: type, *, field: str, hint: str) -> None:
    """What is of another kind would else be told of later, as an attribute that is missing somewhere."""
    if not isinstance(given, wanted):
        raise InvalidParameterError(f"{shown(given)} is no {wanted.__name__}", field=field, hint=hint)


def able(given: object, *methods: str, field: str, hint: str) -> None:
    """As `kind`, where anything will do that has these methods."""
    if not all(callable(getattr(given, method, None)) for method in methods):
        raise InvalidParameterError(f"{shown(given)} has no {' or '.join(methods)}", field=field, hint=hint)


def options(**given: tuple[object, type, str]) -> None:
    """By its name: what was given, of which kind it must be unless it is None, and what to do instead."""
    for field, (value, wanted, hint) in given.items():
        if value is not None:
            kind(value, wanted, field=field, hint=hint)


def function(given: object, *, field: str, hint: str) -> None:
    if not callable(given):
        raise InvalidParameterError(f"{shown(given)} is no function", field=field, hint=hint)


def clock(given: object) -> None:
    if given is not None:
        able(given, "now", "monotonic", field="clock", hint="leave it out, or use FakeClock()")


def resolver(given: object, method: str, *, field: str = "resolver") -> None:
    if given is not None:
        able(given, method, field=field, hint="use MailboxResolver")


def metrics(given: object) -> None:
    if given is not None:
        able(given, "sent", "watch", field="metrics", hint="leave it out, or use MailboxMetrics()")


def patience(seconds: object) -> None:
    """Of a shutdown; less than nothing is nothing."""
    if not is_number(seconds) or seconds > LONGEST:
        hint = f"give seconds, at most {LONGEST:,}"
        raise InvalidParameterError(f"{shown(seconds)} is no time", field="timeout", hint=hint)


def visibility(seconds: float, *, field: str = "visibility_timeout") -> Millis:
    hint = f"use 0 to {LONGEST_VISIBILITY} seconds"
    if is_number(seconds) and 0 <= seconds <= LONGEST_VISIBILITY:
        return round(seconds * 1000)
    raise InvalidParameterError(f"{shown(seconds)} is out of range", field=field, hint=hint)


def working_visibility(seconds: float) -> float:
    """Of whoever works on what it receives; only to look at it, 0 will do."""
    if is_number(seconds) and LEAST_TO_WORK <= seconds <= LONGEST_VISIBILITY:
        return seconds
    hint = f"use {LEAST_TO_WORK} to {LONGEST_VISIBILITY} seconds"
    said = f"{shown(seconds)} is no time in which a message can be worked on"
    raise InvalidParameterError(said, field="visibility_timeout", hint=hint)


def wait_time(seconds: float) -> Millis:
    if is_number(seconds) and 0 <= seconds <= LONGEST:
        return round(seconds * 1000)
    hint = f"use 0 to {LONGEST:,} seconds"
    raise InvalidParameterError(f"{shown(seconds)} is out of range", field="wait_time_seconds", hint=hint)


def seconds(value: float, *, field: str) -> Millis:
    """A span of any length that somebody may live to see the end of."""
    if is_number(value) and 0 <= value <= LONGEST:
        return round(value * 1000)
    what = "longer than 100 years" if is_number(value) and value > 0 else "no number of seconds"
    raise InvalidParameterError(f"{shown(value)} is {what}", field=field, hint=f"use 0 to {LONGEST:,}")


def threshold(count: object, *, field: str) -> int:
    """Of dead letters, from which on they are too many."""
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1:
        return count
    raise InvalidParameterError(f"{shown(count)} is no number of dead letters", field=field, hint="use 1 or more")


def how_many(count: object) -> int:
    """At least 1, at most 10, whatever was asked for."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidParameterError(
            f"{shown(count)} is no number of messages", field="max_messages", hint="use 1 to 10"
        )
    return max(1, min(count, MOST_MESSAGES))


def rounds(count: object) -> int | None:
    """Of a loop; anything that it can never have made would let it run for ever."""
    if count is None or (isinstance(count, int) and not isinstance(count, bool) and count >= 0):
        return count
    hint = "use 0 or more, or None to run until it is told to stop"
    raise InvalidParameterError(f"{shown(count)} is no number of rounds", field="max_iterations", hint=hint)


def capacity(count: object) -> int | None:
    if count is None:
        return None
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1:
        return count
    raise InvalidParameterError(f"{shown(count)} is no capacity", field="max_size", hint="use 1 or more, or None")


def attributes(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise InvalidParameterError(f"{shown(given)} is no mapping of texts to texts", field="attributes", hint=_TEXTS)
    try:
        "".join([one for pair in given.items() for one in pair]).encode()
    except UnicodeEncodeError:
        said = f"{shown(given)} has half characters (lone surrogates)"
        raise InvalidParameterError(said, field="attributes", hint="use texts that can be written as UTF-8") from None
    return dict(given)


def checked(check: Callable[[object], A], given: object) -> A:
    """As somebody else checks it, who speaks of settings where we speak of parameters."""
    try:
        return check(given)
    except ConfigError as error:
        said = error.message.removeprefix(f"{error.field}: ")
        raise InvalidParameterError(said, field=error.field, hint=error.hint) from None


def name(given: object, *, field: str = "name") -> str:
    try:
        return check_queue_name(given)
    except ConfigError as error:
        said = error.message.partition(": ")[2].replace("queue name", "name for a mailbox")
        raise InvalidParameterError(said, field=field, hint=error.hint) from None


def message_id(given: object) -> str:
    try:
        return check_id(given)
    except ConfigError as error:
        said = error.message.partition(": ")[2].replace("item id", "id for a message")
        raise InvalidParameterError(said, field="message_id", hint=error.hint) from None


def urgency(given: str) -> Priority:
    try:
        return Priority(given)
    except ValueError:
        hint = f"use one of {', '.join(Priority)}"
        raise InvalidParameterError(f"{shown(given)} is no priority", field="priority", hint=hint) from None


def is_number(value: object) -> TypeGuard[float]:
    """That can be reckoned with: no NaN, and no whole number that no float comes near to."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, float) and not math.isnan(value)
