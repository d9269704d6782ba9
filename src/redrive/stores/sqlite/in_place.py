"""`lease_letters` and `settle_letters` on SQLite: letters that somebody works on where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redrive.core import codec
from redrive.core.decide import Decision, ToCancelled, ToDone, ToReady
from redrive.core.item import Item, Millis
from redrive.core.verbs import Answer, NewEntry, Settlement, Verdict
from redrive.stores.packing import is_sealed
from redrive.stores.sqlite import bonds, settle, shelf, tied
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.rows import item_of
from redrive.stores.sqlite.tied import BINDING, Tied
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_LEASE = load("sqlite", "lease_letters")
_SETTLE = load("sqlite", "settle_letters")
_AMEND = load("sqlite", "amend")
_GET = load("sqlite", "get")

_LYING: dict[str, Kind] = {"open": "open", "archived": "archived"}
_LIVE = ("ready", "leased")


def lease(tx: Tx, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool, reserved: str) -> tuple[Item, ...]:
    """A letter whose payload is damaged is given with its flaw: it stays the letter it is."""
    meant = codec.encode(list(dict.fromkeys(ids))).decode()
    free = tx.execute(_LEASE["free"], (worker, tx.now, meant, reserved, tx.now, worker, early)).fetchall()
    until = tx.now + ttl
    fresh, again = [[seq for seq, held in free if bool(held) is still] for still in (False, True)]
    if fresh:
        tx.execute(_LEASE["give"], (worker, tx.now, until, tied.numbers(fresh)))
    if again:
        tx.execute(_LEASE["prolong"], (until, tied.numbers(again)))
    seqs = [seq for seq, _ in free]
    items = [item_of(row) for row in tx.execute(_GET["by_seqs"], (tied.numbers(seqs),)).fetchall()] if seqs else []
    return tuple(sorted(items, key=lambda item: seqs.index(item.seq)))


class _Held(NamedTuple):
    """An item as it is before it is settled; of a letter also where it lies."""

    state: str
    deliveries: int
    held: int
    disposition: str | None
    cause: str | None
    route: str | None
    item: Tied


class _Plan:
    """What a set of settlements writes."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._over: list[tuple[_Held, Settlement, Kind]] = []
        self._let_go: list[tuple[int]] = []
        self._held_back: list[tuple[int, int]] = []
        self._attempts: list[tuple[int, int, bytes]] = []
        self._entries: list[NewEntry] = []
        self._settled: set[int] = set()

    def judge(self, settlement: Settlement, letter: _Held | None) -> Answer:
        if letter is None:
            return Answer(settlement.id, Verdict.REFUSED, "no such item")
        if letter.deliveries != settlement.delivery:
            reason = f"lease was given away: delivery {letter.deliveries} is current"
            return Answer(settlement.id, Verdict.REFUSED, reason)
        if letter.state in _LIVE:
            return Answer(settlement.id, Verdict.REFUSED, f"it is {letter.state}, not a dead letter")
        if letter.state != "dead" or not letter.held or letter.item.seq in self._settled:
            return Answer(settlement.id, Verdict.ALREADY)
        self._add(settlement, letter)
        return Answer(settlement.id, Verdict.APPLIED)

    def _add(self, settlement: Settlement, letter: _Held) -> None:
        seq, decision = letter.item.seq, settlement.decision
        self._settled.add(seq)
        if isinstance(decision, ToDone):
            self._over.append((letter, settlement, "done"))
        elif isinstance(decision, ToCancelled):
            self._over.append((letter, settlement, "cancelled"))
        elif isinstance(decision, ToReady) and decision.delay > 0:
            self._held_back.append((self._tx.now + decision.delay, seq))
        else:
            self._let_go.append((seq,))
        if settlement.attempt is not None:
            self._attempts.append((seq, settlement.delivery, codec.encode(settlement.attempt)))
        if settlement.audit is not None:
            self._entries.append(settlement.audit)

    def write(self) -> None:
        tx = self._tx
        tx.change_letters(self._settled)
        for name, rows in (("let_go", self._let_go), ("hold_back", self._held_back)):
            if rows:
                tx.executemany(_SETTLE[name], rows)
        if self._attempts:
            settle.add_attempts(tx, self._attempts)
        if self._over:
            self._end()
        shelf.append(tx, self._entries)

    def _end(self) -> None:
        tx = self._tx
        tx.executemany(_SETTLE["over"], [(kind, tx.now, letter.item.seq) for letter, _, kind in self._over])
        tx.execute(_AMEND["drop_letters"], (tied.numbers([letter.item.seq for letter, _, _ in self._over]),))
        for letter, _, kind in self._over:
            _count(tx, letter, kind)
        ends = [(letter.item.seq, one.decision) for letter, one, _ in self._over]
        results = [(seq, end.result) for seq, end in ends if isinstance(end, ToDone) and end.result is not None]
        if results:
            settle.add_results(tx, results)
            tx.in_clear.update([letter.item.queue for letter, one, _ in self._over if _in_clear(one.decision)])
        bound = [(letter.item, str(kind)) for letter, _, kind in self._over if letter.item.ties & BINDING]
        bonds.letters_end(tx, bound)
        put(tx, [new for _, one, _ in self._over for new in one.follow_ups], admit=False)
        bonds.letters_over(tx, bound)


def _in_clear(decision: Decision) -> bool:
    return isinstance(decision, ToDone) and decision.result is not None and not is_sealed(decision.result)


def settle_all(tx: Tx, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
    plan = _Plan(tx)
    rows = tx.execute(_SETTLE["held"], (settle.named([one.id for one in settlements]),)).fetchall()
    found = {place: _held(*facts) for place, *facts in rows}
    # SQLite's json_each cuts texts at a NUL and would find somebody else.
    there = {place: letter for place, letter in found.items() if letter.item.id == settlements[place].id}
    answers = tuple([plan.judge(one, there.get(place)) for place, one in enumerate(settlements)])
    plan.write()
    return answers


def _held(*facts: Any) -> _Held:
    """From the columns of settle_letters.held after the place."""
    state, deliveries, held, disposition, cause, route, *tied_facts = facts
    return _Held(state, deliveries, held, disposition, cause, route, Tied(*tied_facts))


def _count(tx: Tx, letter: _Held, kind: Kind) -> None:
    lying = _LYING[letter.disposition or ""]
    tx.moved(letter.item.queue, lying, kind)
    if lying == "open":
        tx.count_cause(letter.cause or "", letter.item.queue, -1)
        tx.count_route(letter.route or "", -1)
