"""Rates as people write them: "100/s", "100/min", "5 per 10s", "100/min burst 20"."""

from __future__ import annotations

import re

from redrive.core import durations
from redrive.core.meters import Rate
from redrive.core.quantity import shown, trimmed
from redrive.errors import BadDuration, ConfigError

RateText = Rate | str

_ACCEPTED = 'use text such as "100/s", "100/min", "5 per 10s" or "100/min burst 20", or Rate(count, per)'
_TYPED = "use a rate such as 100/s, 100/min, '5 per 10s' or '100/min burst 20'"
"""Where it is an option of a command."""
_TEXT = re.compile(r"(?P<count>[0-9][0-9,_]*)\s*(?:/|\bper\b)\s*(?P<per>.+?)(?:,?\s+burst\s+(?P<burst>[0-9][0-9,_]*))?")
_MOST = 1_000_000_000
"""More than a microsecond clock can tell apart is no rate."""
_UNITS = {1000: "s", 60_000: "min", 3_600_000: "h", 86_400_000: "d"}


def parse(value: RateText, *, field: str = "rate") -> Rate:
    """A Rate that lets something pass, or ConfigError that names `field`, the value and what is accepted."""
    try:
        rate = value if isinstance(value, Rate) else _from_text(value)
        _check(rate)
    except ValueError as error:
        accepted = _TYPED if field.startswith("--") else _ACCEPTED
        raise ConfigError(f"{shown(value)} is not a rate: {error}", field=field, hint=accepted) from None
    return rate


def format(rate: Rate) -> str:  # noqa: A001 - read as rates.format, the inverse of rates.parse
    """The text that `parse` reads back as the same rate."""
    per = _UNITS.get(rate.per) or durations.format(rate.per)
    return f"{rate.count}/{per}" + ("" if rate.burst is None else f" burst {rate.burst}")


def _from_text(value: object) -> Rate:
    if not isinstance(value, str):
        raise ValueError(f"it is a {type(value).__name__}")  # noqa: TRY004 - parse turns ValueError into ConfigError
    found = _TEXT.fullmatch(trimmed(value))
    if found is None:
        raise ValueError("it is not a number, a slash and a time")
    per = found["per"].strip()
    try:
        # "/min" is once a minute: the one is left out, as people do.
        millis = durations.parse(per if per[:1].isdigit() else f"1{per}")
    except BadDuration as error:
        raise ValueError(error.message.partition(": ")[2]) from None
    return Rate(_number(found["count"]), millis, None if found["burst"] is None else _number(found["burst"]))


def _number(text: str) -> int:
    return int(re.sub("[,_]", "", text))


def _check(rate: Rate) -> None:
    given: tuple[tuple[str, object], ...] = (("count", rate.count), ("time", rate.per), ("burst", rate.burst))
    for what, number in given:
        if number is None and what == "burst":
            continue
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"its {what} is not a whole number")  # noqa: TRY004 - as above
        if number < 1:
            raise ValueError(f"its {what} is 0, so that it lets nothing pass; pause the queue to stop it")
        if number > _MOST and what != "time":
            raise ValueError(f"its {what} is above {_MOST:,}")
    if rate.count > rate.per * 1000:
        raise ValueError("it is faster than one each microsecond")
