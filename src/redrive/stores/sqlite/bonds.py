"""What the move of one item means for others: lines, dependencies, dedupe keys, places under a limit key.

Within one write everything that ends is marked first, with all that dies along; then followers among them leave their
lines, then lines whose head ended go on, then whoever was freed loses its hold. So the outcome does not depend on the
order in which things are looked at, and nothing that ends in a write is moved by it to the front first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redrive.core.terms import AWAITED, DEDUPED, LIMITED, ORDERED, WAITS
from redrive.stores.sqlite import edges, keys, lines, slots
from redrive.stores.sqlite.tied import Tied
from redrive.stores.sqlite.tx import Tx

Over = tuple[Tied, str]
"""An item as it was, and the state it has now."""


def ties_of(moved: Iterable[Over]) -> int:
    """Of all of them: most have one kind of tie, and what none of them has is not gone through."""
    ties = 0
    for item, _ in moved:
        ties |= item.ties
    return ties


def give_keys_back(tx: Tx, moved: Sequence[Over], ties: int) -> None:
    if ties & DEDUPED:
        keys.release(tx, [(item, state) for item, state in moved if item.has(DEDUPED) and state != "ready"])


def ended(tx: Tx, moved: Sequence[Over], ties: int) -> None:
    """All with ties that this write moved, by itself and written already; their dedupe keys are given back."""
    over = [one for one in moved if one[1] != "ready"]
    if ties & WAITS:
        edges.give_up(tx, [item for item, _ in over])
    freed: list[int] = []
    if ties & AWAITED:
        freed = edges.fulfil(tx, [item for item, state in over if state == "done" and item.has(AWAITED)])
        lost = [item for item, state in over if state in edges.LOST]
        along = edges.doom(tx, edges.dying_with(tx, lost))
        over += along
        ties |= ORDERED if along else 0
    if ties & ORDERED:
        lines.move_on(tx, [one for one in over if one[0].ties & ORDERED])
    edges.free(tx, freed)
    if ties & LIMITED:
        slots.pass_on(tx, [item for item, _ in moved])


def letters_end(tx: Tx, over: Sequence[Over]) -> None:
    """Where they lie: nobody is past one any more; if it is done, it has the key of one that ran, or its twin has."""
    for item, state in over:
        if item.has(ORDERED):
            lines.close_gap(tx, item)
        if state == "done" and item.has(DEDUPED):
            keys.take_free(tx, item)
    keys.release(tx, [one for one in over if one[0].has(DEDUPED)])


def letters_over(tx: Tx, over: Sequence[Over]) -> None:
    """As `ended`, of letters whose end is written: many head no line, and nothing of their limit keys ran."""
    freed = edges.fulfil(tx, [item for item, state in over if state == "done" and item.has(AWAITED)])
    doom(tx, edges.dying_with(tx, [item for item, state in over if state in edges.LOST]))
    for item, _ in over:
        if item.has(ORDERED):
            lines.advance(tx, [(item, "")])
    edges.free(tx, freed)


def doom(tx: Tx, seqs: Iterable[int]) -> None:
    """New items that were to die with what is dead already."""
    lines.move_on(tx, [(item, state) for item, state in edges.doom(tx, seqs) if item.has(ORDERED)])
