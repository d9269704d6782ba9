"""Items that are bound to others, as the modules of order, dedupe, dependencies and limits see them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from redrive.core import codec
from redrive.core.item import Instant, Terms
from redrive.core.terms import HOLDS, ORDERED
from redrive.stores.sqlite.rows import SEQ, TERMS, TIES, Row
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "terms")
_ORDER = load("sqlite", "order")

NOTED = 64
"""In `ties`: it has a row in `terms`, if only for the name of its policy."""
BINDING = NOTED - 1
"""What of `ties` there is something to look up for when it moves; TAGGED is not, nor is NOTED."""

AFTER, ORDER, LIMIT, PARKED = [HOLDS.index(name) for name in ("after", "order", "limit", "parked")]


class Tied(Struct, frozen=True, gc=False):
    """The columns of terms.tied."""

    seq: int
    id: str
    queue: str
    ties: int
    hold: int
    enqueued_at: Instant
    order_key: str | None = None
    place: int | None = None
    limit_key: str | None = None
    body: bytes | None = None

    @property
    def terms(self) -> Terms:
        return Terms() if self.body is None else codec.decode(self.body, Terms)

    def has(self, tie: int) -> bool:
        return self.ties & tie != 0

    @property
    def line(self) -> tuple[str, str]:
        return self.queue, self.order_key or ""

    @property
    def slot(self) -> tuple[str, str]:
        return self.queue, self.limit_key or ""


def numbers(seqs: Iterable[int]) -> str:
    """As statements take many at once."""
    return codec.encode(list(seqs)).decode()


def leased(row: Row) -> Tied:
    """From the columns of lease.pick."""
    body, _, limit_key, order_key, place = row[TERMS : TERMS + 5]
    return Tied(row[SEQ], row[0], row[1], row[TIES], 0, row[4], order_key, place, limit_key, body)


def read(tx: Tx, seqs: Iterable[int]) -> list[Tied]:
    return [Tied(*row) for row in tx.execute(_SQL["tied"], (numbers(seqs),)).fetchall()]


def kind_of(tx: Tx, item: Tied) -> Kind:
    """The counter that a ready item is counted in."""
    if not item.hold:
        return "ready"
    if item.hold == PARKED:
        return "parked"
    if item.has(ORDERED):
        row = tx.execute(_ORDER["line"], item.line).fetchone()
        if row is not None and row[2] == "parked" and row[0] != item.seq:
            return "parked"
    return "held"


def set_hold(tx: Tx, seq: int, hold: int) -> None:
    tx.execute(_SQL["hold"], (hold, seq))
