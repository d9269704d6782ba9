"""Sizes as people write them, kept as whole bytes.

KB, MB, GB, TB are powers of 1,000 and KiB, MiB, GiB, TiB powers of 1,024. A bare K or M is refused: people mean both by
it.
"""

from __future__ import annotations

import re
from decimal import Decimal

from redrive.core.quantity import shown, trimmed
from redrive.errors import ConfigError

Size = int | str

MAX = 2**63 - 1
"""What a database can count to."""

_ACCEPTED = 'use a number of bytes, or text such as "512KiB", "64KB", "8MiB" or "1.5GB"'

_UNITS = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([^\W\d_]*)")


def parse(value: Size, *, field: str = "size") -> int:
    """Bytes, or ConfigError that names `field`, the value and what is accepted."""
    try:
        size = _exact(value)
    except ValueError as error:
        raise ConfigError(f"{shown(value)} is not a size: {error}", field=field, hint=_ACCEPTED) from None
    if size < 0:
        raise ConfigError(f"{shown(value)} is negative", field=field, hint=_ACCEPTED)
    if size > MAX:
        raise ConfigError(f"{shown(value)} is larger than anything can be", field=field, hint=_ACCEPTED)
    return size


def _exact(value: object) -> int:
    # bool is an int, and True bytes is never what somebody meant.
    if isinstance(value, bool):
        raise ValueError("a truth value has no size")  # noqa: TRY004 - parse turns ValueError into ConfigError
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, int):
        return int(value)
    raise ValueError(f"it is a {type(value).__name__}")


def _from_text(text: str) -> int:
    said = trimmed(text)
    found = _TEXT.fullmatch(said)
    if found is None:
        raise ValueError("it is not one number with at most one unit")
    number, suffix = found.groups()
    unit = _UNITS.get(suffix.lower())
    if unit is None:
        raise ValueError(_unknown(suffix))
    size = Decimal(number) * unit
    if size != int(size):
        raise ValueError("it is not a whole number of bytes")
    return int(size)


def _unknown(suffix: str) -> str:
    if len(suffix) == 1 and suffix.lower() in "kmgt":
        big = suffix.upper()
        return f"{suffix!r} may be {big}B (powers of 1,000) or {big}iB (powers of 1,024)"
    return f"the unit {suffix!r} is unknown"
