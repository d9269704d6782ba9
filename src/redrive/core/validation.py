"""Checks of arguments: the error names the parameter, the value and the fix."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeGuard

from redrive.core import durations
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.errors import ConfigError, InvalidParameterError

LONGEST = durations.MAX // 1000
"""Seconds: a hundred years."""
TEXT = 200
"""Characters of a text for people."""
Error = type[ConfigError] | type[InvalidParameterError]


def check_type(given: object, wanted: type, *, field: str, hint: str) -> None:
    if not isinstance(given, wanted):
        raise InvalidParameterError(f"must be a {wanted.__name__}, got {shown(given)}", field=field, hint=hint)


def check_optional(**given: tuple[object, type, str]) -> None:
    """By parameter: the value, which may be None, its type, and the fix."""
    for field, (value, wanted, hint) in given.items():
        if value is not None:
            check_type(value, wanted, field=field, hint=hint)


def check_has(given: object, *methods: str, field: str, hint: str) -> None:
    """Anything that has these methods will do."""
    if not all(callable(getattr(given, method, None)) for method in methods):
        message = f"must have {' and '.join(f'{method}()' for method in methods)}, got {shown(given)}"
        raise InvalidParameterError(message, field=field, hint=hint)


def check_function(given: object, *, field: str, hint: str, error: Error = InvalidParameterError) -> None:
    if not callable(given):
        raise error(f"must be a function, got {shown(given)}", field=field, hint=hint)


def check_errors(given: object, *, field: str, names: bool = False) -> None:
    """None, or a collection of exception classes; with `names`, also of their names. Not an iterator, which is used up
    by the first error that is compared with it.
    """
    hint = f"give exception classes{' or their names' if names else ''}, such as frozenset({{TimeoutError}})"
    if isinstance(given, str) or not (given is None or isinstance(given, Collection)):
        raise InvalidParameterError(f"must be a set of exception classes, got {shown(given)}", field=field, hint=hint)
    for each in given or ():
        if not (isinstance(each, type) and issubclass(each, BaseException)) and not (names and isinstance(each, str)):
            raise InvalidParameterError(f"must be an exception class, got {shown(each)}", field=field, hint=hint)


_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[!-~]{0,456})?"
)


def check_traceparent(trace: object, *, field: str) -> str:
    """W3C Trace Context: version, trace id, span id and flags; versions after 00 may have more behind them.

    In all no more than the 512 characters that a store takes.
    """
    found = _TRACEPARENT.fullmatch(trace) if isinstance(trace, str) else None
    if found is None or (found["version"] == "00" and found["more"] is not None):
        hint = "use 00-, 32 hex digits of the trace, -, 16 of the span and -01, in small letters, or leave it out"
        raise ConfigError(f"{shown(trace)} is not a W3C traceparent", field=field, hint=hint)
    return found[0]


def check_clock(given: object) -> None:
    if given is not None:
        check_has(given, "now", "monotonic", field="clock", hint="leave it out, or use FakeClock()")


def check_timeout(seconds: object, field: str = "timeout") -> None:
    """Of a shutdown; less than 0 does not wait."""
    if not is_number(seconds) or seconds > LONGEST:
        message = f"must be a number of seconds, got {shown(seconds)}"
        raise InvalidParameterError(message, field=field, hint=f"use at most {LONGEST:,}")


def check_seconds(value: float, *, field: str, least: float = 0, most: float = LONGEST) -> Millis:
    """As milliseconds."""
    if is_number(value) and least <= value <= most:
        return round(value * 1000)
    hint = f"use {least} to {most:,} seconds"
    raise InvalidParameterError(f"must be a number of seconds in range, got {shown(value)}", field=field, hint=hint)


def check_count(
    count: object,
    *,
    field: str,
    least: int = 1,
    most: int | None = None,
    hint: str = "",
    error: Error = InvalidParameterError,
) -> int:
    if isinstance(count, int) and not isinstance(count, bool) and least <= count and (most is None or count <= most):
        return count
    if most is not None:
        raise error(f"must be a whole number from {least} to {most:,}, got {shown(count)}", field=field, hint=hint)
    message = f"must be a whole number of at least {least}, got {shown(count)}"
    raise error(message, field=field, hint=hint or f"use {least} or more")


def check_str_list(given: object, *, field: str, hint: str) -> list[str]:
    """A string alone would be taken for as many words as it has letters."""
    if not isinstance(given, str | bytes | Mapping) and isinstance(given, Iterable):
        found = list(given)
        if all(isinstance(each, str) and each.strip() for each in found):
            return found
        given = found
    raise ConfigError(f"must be a list of non-empty strings, got {shown(given)}", field=field, hint=hint)


def check_list(given: object, *, field: str, hint: str) -> list[Any]:
    """Any iterable but a string or mapping, which would be taken for its characters or keys."""
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InvalidParameterError(f"must be a list, got {shown(given)}", field=field, hint=hint)
    return list(given)


def check_range(value: object, *, field: str, least: float, most: float, whole: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not least <= value <= most:
        text = f"must be a {'whole ' if whole else ''}number from {least:,} to {most:,}, got {shown(value)}"
        raise InvalidParameterError(text, field=field, hint=f"use {least:,} to {most:,}")


def check_path(given: object, *, field: str, hint: str) -> None:
    if not isinstance(given, str) and not hasattr(type(given), "__fspath__"):
        raise InvalidParameterError(f"must be a path, got {shown(given)}", field=field, hint=hint)


def is_number(value: object) -> TypeGuard[float]:
    """An int or float that can be calculated with: not NaN, not a bool, and in the range of floats."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, float) and not math.isnan(value)


def check_text(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT or not value.isprintable():
        hint = f"use at most {TEXT} printable characters"
        raise ConfigError(f"{shown(value)} cannot be used", field=field, hint=hint)
    return value


def check_flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"must be True or False, got {shown(value)}", field=field, hint="use True or False")
    return value


def choice(*choices: str) -> Callable[[object, str], str]:
    """The check of a parameter that must be one of these."""

    def check(value: object, field: str) -> str:
        if value not in choices:
            raise ConfigError(f"must be one of {', '.join(choices)}, got {shown(value)}", field=field, hint="use one")
        return str(value)

    return check
