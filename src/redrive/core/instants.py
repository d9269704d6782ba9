"""Dates and times of day as people write them in a filter, kept as whole milliseconds since the epoch.

A literal stands for a span: a date for its day, a time for its minute or second, as far as it is written out.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from redrive.core.item import Instant

_FORM = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ](?P<minute>[0-9]{2}:[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,9}))?)?"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI = timedelta(milliseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLI
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLI
_DAY, _MINUTE, _SECOND = 86_400_000, 60_000, 1_000


def span(text: str) -> tuple[Instant, Instant]:
    """First and last millisecond of what an ISO 8601 date or time names; UTC unless it says. ValueError if none."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError("it is no date")
    minute, second, fraction = found["minute"], found["second"], found["fraction"]
    zone = (found["zone"] or "Z").upper().replace("Z", "+00:00")
    said = f"{found['date']}T{minute or '00:00'}:{second or '00'}.{(fraction or '')[:3]:0<3}{zone}"
    begin = (datetime.fromisoformat(said) - _EPOCH) // _MILLI
    if not _FIRST <= begin <= _LAST:
        raise ValueError("no calendar has it in UTC")
    lasts = 1 if fraction else _SECOND if second else _MINUTE if minute else _DAY
    return begin, begin + lasts - 1


def moment(instant: Instant) -> datetime:
    return datetime.fromtimestamp(instant / 1000, UTC)


def format(instant: Instant) -> str:  # noqa: A001 - read as instants.format, as with durations
    """To the millisecond, so that `span` reads back the same; what no calendar has is brought to its nearest end."""
    at = _EPOCH + max(_FIRST, min(instant, _LAST)) * _MILLI
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
