"""The chain over the audit: each seal has the hash of the entries since the last one, and of the hash before it.

Whoever changes, adds or removes a sealed entry would have to make all later seals anew; and whoever has noted one hash
elsewhere can tell even that.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from msgspec import Struct, field

from redrive.core.verbs import Entry

KIND = "seal"
HEAD = "seal-head"
"""Kind of the one document that holds the last seal once more, so that nobody has to look for it."""
GENESIS = "0" * 64


class Seal(Struct, frozen=True):
    """`count` entries with positions from `first` to `upto` give `hash`, together with the hash `before` them."""

    number: int
    first: int = field(name="from")
    upto: int
    count: int
    hash: str
    before: str


UNSEALED = Seal(0, 0, 0, 0, GENESIS, GENESIS)
"""What the first seal follows."""


def key_of(number: int) -> str:
    return f"{number:012}"


class Chain:
    """Takes entries in order, and gives the seal over them."""

    def __init__(self, last: Seal) -> None:
        self._last = last
        self._hash = sha256(last.hash.encode())
        self._count = 0
        self._upto = last.upto

    @property
    def count(self) -> int:
        return self._count

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            for part in _parts(entry):
                # With its length, so that no two different entries give the same bytes.
                self._hash.update(len(part).to_bytes(8, "big"))
                self._hash.update(part)
            self._count += 1
            self._upto = entry.position

    def seal(self) -> Seal:
        last = self._last
        return Seal(last.number + 1, last.upto + 1, self._upto, self._count, self._hash.hexdigest(), last.hash)


def _parts(entry: Entry) -> tuple[bytes, ...]:
    texts = (str(entry.position), str(entry.at), entry.topic, entry.actor, entry.reason, entry.request_id)
    return (*[text.encode("utf-8", "surrogatepass") for text in texts], entry.body)
