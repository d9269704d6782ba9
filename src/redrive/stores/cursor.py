"""Where the next page of `find` starts, as opaque text that is good for one search only."""

from __future__ import annotations

import base64
import json
import re
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

import msgspec

from redrive.core.select import Selection, pins_dead
from redrive.errors import ConfigError

Place = tuple[int, int]
"""What pages are ordered by: (died_at, seq) for letters, (seq, seq) otherwise."""

KEY = b"redrive find 1"
"""No secret: whoever can ask a store can read all of it. Another form of cursors or selections gets another key."""

_FORM = re.compile(r"((?:oldest-)?(?:died|enqueued)) (\d{1,18}) (\d{1,18})", re.ASCII)
_DIGEST = 8


class Pages(NamedTuple):
    """The pages of one search: which items, and from which end. Its cursors are sealed, and it opens no others."""

    selection: Selection
    oldest: bool
    key: bytes = KEY

    @property
    def order(self) -> str:
        return order_of(letters=pins_dead(self.selection), oldest=self.oldest)

    def sealed(self, bare: str) -> str:
        """What is given out for a place that a store wrote."""
        # Not msgspec's own text: half a character and a very large number are looked for, too.
        meant = json.dumps([self.order, bare, msgspec.to_builtins(self.selection)])
        digest = blake2b(meant.encode(), digest_size=_DIGEST, key=self.key).digest()
        return base64.urlsafe_b64encode(bare.encode() + digest).decode()

    def opened(self, cursor: str | None) -> str | None:
        """The place as the store wrote it. ConfigError for what was altered, made up, or comes from another search."""
        if cursor is None:
            return None
        try:
            bare = base64.urlsafe_b64decode(cursor)[:-_DIGEST].decode("ascii")
        except ValueError:
            raise _foreign(cursor) from None
        # All of it, as there is more than one text for the same bytes.
        if not compare_digest(self.sealed(bare), cursor):
            raise _foreign(cursor)
        return bare


def order_of(*, letters: bool, oldest: bool) -> str:
    """How the pages of a search are ordered, by name: a cursor is good for one order only."""
    order = "died" if letters else "enqueued"
    return f"oldest-{order}" if oldest else order


def write(order: str, place: Place) -> str:
    return f"{order} {place[0]} {place[1]}"


def read(order: str, bare: str | None) -> Place | None:
    if bare is None:
        return None
    form = _FORM.fullmatch(bare)
    if form is None or form[1] != order:
        raise _foreign(bare)
    return int(form[2]), int(form[3])


def _foreign(cursor: str) -> ConfigError:
    return ConfigError(
        f"{cursor[:80]!r} is not a cursor of this search",
        field="cursor",
        hint="use the one that came with the page before, for the same filter; without one it starts anew",
    )
