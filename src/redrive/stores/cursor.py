"""Where the next page of `find` starts, as opaque text."""

from __future__ import annotations

import base64
import binascii
import re

from redrive.errors import ConfigError

Place = tuple[int, int]
"""What pages are ordered by: (died_at, seq) for letters, (seq, seq) otherwise."""

_FORM = re.compile(r"(died|enqueued) (\d{1,18}) (\d{1,18})")


def write(order: str, place: Place) -> str:
    return base64.urlsafe_b64encode(f"{order} {place[0]} {place[1]}".encode()).decode()


def read(order: str, cursor: str | None) -> Place | None:
    if cursor is None:
        return None
    try:
        form = _FORM.fullmatch(base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii"))
    except (binascii.Error, ValueError):
        form = None
    if form is None or form[1] != order:
        raise ConfigError(
            f"{cursor[:80]!r} is not a cursor of this search",
            field="cursor",
            hint="use the one that came with the page before, for the same filter; without one it starts anew",
        )
    return int(form[2]), int(form[3])
