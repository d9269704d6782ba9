"""Durations as people write them, kept as whole milliseconds.

Numbers are seconds. Fractions of a millisecond are rounded up, so nothing is ever early. Arithmetic is decimal: 16.1
seconds are 16,100 ms, not the 16,101 that binary floating point would round up to.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal

from redrive.core.item import Millis
from redrive.core.quantity import shown, trimmed
from redrive.errors import BadDuration

Duration = str | int | float | timedelta

MAX: Millis = 100 * 365 * 86_400 * 1000
"""A hundred years: whatever is longer is a mistake, and a due time must stay far from the edge of 64 bits."""

_ACCEPTED = 'use seconds, a timedelta, or text such as "200ms", "30s", "5m", "1h30m", "7d" or "PT1H30M"'
_TYPED = "use a number of seconds, or 200ms, 30s, 5m, 1h30m, 7d or PT1H30M"
"""Where it is an option of a command, or a setting in a file or a variable, as in worker.grace."""

_SIZES = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SUFFIXES = {
    "ms": ("ms", "milli", "millis", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_UNITS = {suffix: _SIZES[unit] for unit, suffixes in _SUFFIXES.items() for suffix in suffixes}

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PLAIN = re.compile(_NUMBER)
_PART = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_]+)\s*")
_ISO = re.compile(
    r"P(?=[0-9T])(?:(?P<w>{n})W)?(?:(?P<d>{n})D)?"
    r"(?:T(?=[0-9])(?:(?P<h>{n})H)?(?:(?P<m>{n})M)?(?:(?P<s>{n})S)?)?".format(n=r"[0-9]+(?:[.,][0-9]+)?"),
    re.IGNORECASE,
)


def parse(value: Duration, *, field: str = "duration") -> Millis:
    """Milliseconds, or BadDuration that names `field`, the value and what is accepted."""
    accepted = _TYPED if field.startswith("--") or "." in field else _ACCEPTED
    try:
        millis = _exact(value)
    except ValueError as error:
        raise BadDuration(f"{shown(value)} is not a duration: {error}", field=field, hint=accepted) from None
    if millis < 0:
        raise BadDuration(f"{shown(value)} is negative", field=field, hint=accepted)
    if millis > MAX:
        raise BadDuration(f"{shown(value)} is longer than 100 years", field=field, hint=accepted)
    return int(millis.to_integral_value(ROUND_CEILING))


def positive(value: Duration, *, field: str = "duration") -> Millis:
    """As `parse`, for durations that must be greater than 0."""
    millis = parse(value, field=field)
    if millis < 1:
        raise BadDuration(f"must be greater than 0, got {shown(value)}", field=field, hint="use 30s")
    return millis


def format(millis: Millis) -> str:  # noqa: A001 - read as durations.format, the inverse of durations.parse
    """The shortest text that `parse` reads back as the same number: 1h30m, 1.5s, 200ms, 0s."""
    if millis < 0:
        return f"-{format(-millis)}"
    parts = []
    rest = millis
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _SIZES[unit])
        if count:
            parts.append(f"{count}{unit}")
    seconds, thousandths = divmod(rest, 1000)
    if seconds and thousandths:
        parts.append(f"{seconds}.{thousandths:03}".rstrip("0") + "s")
    elif seconds:
        parts.append(f"{seconds}s")
    elif thousandths:
        parts.append(f"{thousandths}ms")
    return "".join(parts) or "0s"


def brief(millis: Millis) -> str:
    """In its one or two largest units, for people: 45s, 1m4s, 3h, 12d."""
    if millis < 1000:
        return f"{max(0, millis)}ms"
    left = millis // 1000
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
        if parts and (len(parts) == 2 or count == 0 or count > 9):
            break
    return "".join(parts)


def _exact(value: object) -> Decimal:
    # bool is an int, and True seconds is never what somebody meant.
    if isinstance(value, bool):
        raise ValueError("a truth value has no length")  # noqa: TRY004 - parse turns ValueError into BadDuration
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, timedelta):
        return Decimal(value // timedelta(microseconds=1)) / 1000
    if isinstance(value, int):
        # Decimal would take minutes over an integer of a million digits.
        return Decimal(max(-1, min(value, MAX)) * 1000)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("it is not finite")
        return Decimal(repr(float(value))) * 1000
    raise ValueError(f"it is a {type(value).__name__}")


def _from_text(text: str) -> Decimal:
    said = trimmed(text)
    if _PLAIN.fullmatch(said):
        return Decimal(said) * 1000
    if said[0] in "Pp":
        return _from_iso(said)
    return _from_parts(said)


def _from_iso(text: str) -> Decimal:
    found = _ISO.fullmatch(text)
    if found is None:
        raise ValueError("an ISO 8601 duration here has weeks, days, hours, minutes and seconds, in that order")
    return _total([(number.replace(",", "."), _SIZES[unit]) for unit, number in found.groupdict().items() if number])


def _from_parts(text: str) -> Decimal:
    parts: list[tuple[str, int]] = []
    position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            raise ValueError(f"a number with a unit is missing at {text[position:]!r}")
        number, suffix = found.groups()
        size = _UNITS.get(suffix.lower())
        if size is None:
            raise ValueError(f"the unit {suffix!r} is unknown")
        if parts and size >= parts[-1][1]:
            raise ValueError("each unit may come once, the longer before the shorter")
        parts.append((number, size))
        position = found.end()
    return _total(parts)


def _total(parts: list[tuple[str, int]]) -> Decimal:
    if any("." in number for number, _ in parts[:-1]):
        raise ValueError("only the last number may have a fraction")
    return sum((Decimal(number) * size for number, size in parts), Decimal(0))
