"""Letters as they were when they were replayed, on SQLite: kept by every replay, until the item is pruned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from redrive.core.acts import (
    Change,
    Recall,
    Refusal,
    recall_refusal,
)
from redrive.core.states import State
from redrive.core.terms import ORDERED
from redrive.stores.sqlite import lines, tied
from redrive.stores.sqlite.tied import Tied
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "recall")


class Kept(NamedTuple):
    """The columns of recall.kept."""

    seq: int
    queue: str
    disposition: str
    cause: str
    route: str
    place: int | None
    gap: str | None
    role: int

    @property
    def was_head(self) -> bool:
        return self.role == 1

    @property
    def was_gap(self) -> bool:
        return self.role == 2


def keep(tx: Tx, seqs: str) -> None:
    tx.execute(_SQL["keep"], (seqs,))


def refusals(tx: Tx, states: dict[int, State], change: Change) -> dict[int, Refusal | None]:
    """Why not, by number."""
    if not isinstance(change, Recall):
        return {}
    kept = {seq: known for seq, *known in tx.execute(_SQL["deliveries"], (tied.numbers(states),)).fetchall()}
    return {seq: recall_refusal(state, *kept.get(seq, (0, None))) for seq, state in states.items()}


def die(tx: Tx, seqs: str) -> dict[int, Kept]:
    """These items are letters again, where they waited; the counters and what is bound to them are the caller's."""
    kept = {row[0]: Kept(*row) for row in tx.execute(_SQL["kept"], (seqs,)).fetchall()}
    for name in ("die", "letters", "forget"):
        tx.execute(_SQL[name], (seqs,))
    return kept


def put_back(tx: Tx, letters: Iterable[Tied], kept: dict[int, Kept]) -> None:
    """In their lines, in the queues that they have now."""
    ordered = [letter for letter in letters if letter.has(ORDERED)]
    for letter in sorted(ordered, key=lambda one: kept[one.seq].place or 0):
        was = kept[letter.seq]
        tx.execute(_SQL["place"], (was.place, was.gap, letter.seq))
        lines.put_back(tx, letter, was_head=was.was_head, was_gap=was.was_gap)
