"""`amend` of items that are bound to others: back into their lines, keys taken again, and who goes on after them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from msgspec.structs import replace

from redrive.core.acts import (
    NOT_HEAD,
    Change,
    Move,
    Refusal,
    Replay,
    Skip,
    key_held,
)
from redrive.core.terms import AWAITED, DEDUPED, ORDERED, WAITS, dedupe_place
from redrive.stores.checks import KEEPS_BACK, bound_to, there_already, waits_for_stranger, waits_in_vain
from redrive.stores.sqlite import bonds, edges, keys, lines, slots, tied
from redrive.stores.sqlite.lines import Joining
from redrive.stores.sqlite.tied import AFTER, ORDER, Tied
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_AMEND = load("sqlite", "amend")
_TERMS = load("sqlite", "terms")


class Refusals:
    """What others have against a change that is legal for the item itself."""

    def __init__(self, tx: Tx, change: Change) -> None:
        self._tx = tx
        self._change = change
        self._claimed: dict[keys.Place, str] = {}

    def of(self, queue: str, item: Tied | None) -> Refusal | None:
        """`item`: what binds the letter, if anything does."""
        match self._change:
            case Skip():
                ours = item is not None and item.has(ORDERED) and lines.is_head(self._tx, item)
                return None if ours else NOT_HEAD
            case Move(target) if target == queue:
                return there_already(queue)
            case Move():
                return None if item is None else self._tied(item)
            case Replay():
                return None if item is None else self._of_replay(item, self._change)
            case _:
                return None

    def _tied(self, item: Tied) -> Refusal | None:
        """What binds a letter to its queue."""
        if not item.has(ORDERED):
            return None
        line = lines.line_of(self._tx, item.line)
        if line is not None and line.head == item.seq and line.waiting:
            return KEEPS_BACK
        return bound_to(item.queue) if item.has(AWAITED) else None

    def _of_replay(self, item: Tied, change: Replay) -> Refusal | None:
        if change.queue not in {"", item.queue} and (reason := self._tied(item)) is not None:
            return reason
        if item.has(WAITS) and not change.force and (reason := self._in_vain(item)) is not None:
            return reason
        return self._twin(item, change) if item.has(DEDUPED) else None

    def _in_vain(self, item: Tied) -> Refusal | None:
        """It waits for one that can never be done, or that nobody knows."""
        for one in item.terms.after:
            fate = edges.fate(self._tx, one)
            if fate == "cancelled":
                return waits_in_vain(one)
            if fate is None:
                return waits_for_stranger(one)
        return None

    def _twin(self, item: Tied, change: Replay) -> Refusal | None:
        """Also one that goes back by the same act."""
        place = dedupe_place(change.queue or item.queue, item.terms)
        if place is None:
            return None
        holder = self._claimed.get(place) or keys.holders(self._tx, [place]).get(place)
        if holder is not None and not change.force:
            return key_held(holder)
        self._claimed.setdefault(place, item.id)
        return None


def replayed(tx: Tx, items: Iterable[Tied], *, force: bool) -> None:
    """Ready by now, and counted so; one after the other. Forced, they wait for nobody but their lines."""
    for item in items:
        if item.has(DEDUPED):
            keys.take_free(tx, item)
        waits = item.has(WAITS) and not force and _wait_again(tx, item)
        hold, kind = _back_in_line(tx, item, waits=waits) if item.has(ORDERED) else (AFTER if waits else 0, "held")
        if hold:
            tied.set_hold(tx, item.seq, hold)
            tx.moved(item.queue, "ready", kind)
            if item.has(ORDERED):
                lines.give_way(tx, item.line)


def _wait_again(tx: Tx, item: Tied) -> bool:
    terms = item.terms
    missing = [one for one in dict.fromkeys(terms.after) if edges.fate(tx, one) != "done"]
    edges.add(tx, item.seq, missing, die=terms.on_dead == "die")
    return bool(missing)


def _back_in_line(tx: Tx, item: Tied, *, waits: bool) -> tuple[int, Kind]:
    """A dead head at its place, and what others were ever to wait for; the rest at the tail.

    Behind those who wait for it, now or when they are replayed as well, it would be waited for in a ring.
    The hold it has there, and what that counts as.
    """
    lines.close_gap(tx, item)
    if lines.is_head(tx, item):
        lines.turn(tx, item, "flowing")
    else:
        place = item.place
        if place is None or not item.has(AWAITED):
            place = lines.next_place(tx)
            tx.execute(_TERMS["place"], (place, item.seq))
        joining = Joining(tx, [item.line])
        line = joining.join(item.line, item.seq, place)
        joining.write()
        if line.head != item.seq:
            return AFTER if waits else ORDER, "parked" if line.status == "parked" else "held"
        if line.gap:
            tx.execute(_TERMS["gap"], (line.gap, item.seq))
    # Kept by its line before it died: only what it waits for can hold a head.
    return AFTER if waits else 0, "held"


def discarded(tx: Tx, letters: Iterable[Tied]) -> None:
    for letter in letters:
        if letter.has(ORDERED):
            lines.close_gap(tx, letter)
            lines.advance(tx, [(letter, "")])


def moved(tx: Tx, letters: Iterable[Tied], queue: str) -> list[Tied]:
    """They leave their lines, as far as they still head one, and stand behind all that there are elsewhere."""
    after: list[Tied] = []
    for letter in letters:
        place = letter.place
        if letter.has(ORDERED):
            discarded(tx, [letter])
            place = lines.next_place(tx)
            tx.execute(_TERMS["place"], (place, letter.seq))
        after.append(replace(letter, queue=queue, place=place))
    return after


def skipped(tx: Tx, letters: Iterable[Tied]) -> None:
    lines.advance(tx, [(letter, letter.id) for letter in letters])


def parked(tx: Tx, items: Sequence[Tied]) -> None:
    """Held as parked by now: what they were set aside for, or were promised under their limit keys, goes to others."""
    for item in items:
        slots.take_back(tx, item)
    slots.pass_on(tx, items)


def unparked(tx: Tx, items: Iterable[Tied]) -> None:
    """With the hold that each has now."""
    for item in items:
        if item.has(WAITS) and edges.missing(tx, item.seq):
            hold = AFTER
        else:
            hold = ORDER if item.has(ORDERED) and not lines.is_head(tx, item) else 0
        tx.execute(_AMEND["unpark"], (hold, item.seq))
        tx.moved(item.queue, "parked", tied.kind_of(tx, replace(item, hold=hold)))
        tx.woken.add(item.queue)


def ask(tx: Tx, seqs: Iterable[int], text: str) -> None:
    """Running items are to be cancelled."""
    for seq in seqs:
        tx.execute(_TERMS["ask"], (seq, text))
        tx.execute(_TERMS["mark_asked"], (seq,))


def ended(tx: Tx, items: Sequence[Tied], state: str, passed: Container[int] = ()) -> None:
    """They were ready, and are cancelled or dead. `passed`: numbers of dead ones whose lines go on without a gap."""
    moved = [(item, "cancelled" if item.seq in passed else state) for item in items]
    for item in items:
        slots.take_back(tx, item)
    ties = bonds.ties_of(moved)
    bonds.give_keys_back(tx, moved, ties)
    bonds.ended(tx, moved, ties)
