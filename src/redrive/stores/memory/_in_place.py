"""Letters that somebody works on where they lie: who has them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.item import Instant, Item, Millis, holder
from redrive.core.states import Disposition, State
from redrive.core.verbs import Answer, Settlement, Verdict
from redrive.stores.memory import _moves
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._putting import Putting
from redrive.stores.memory._table import Table

LIVE = frozenset({State.READY, State.LEASED})


class InPlace:
    def __init__(self, table: Table, bonds: Bonds, putting: Putting) -> None:
        self._table = table
        self._bonds = bonds
        self._putting = putting

    def lease(
        self, ids: Sequence[str], worker: str, ttl: Millis, now: Instant, *, early: bool, reserved: str
    ) -> tuple[Item, ...]:
        known = self._table.present(ids)
        meant = [item for item in known if item.letter is not None and item.letter.reserved == reserved]
        free = [item for item in meant if _free(item, worker, now, early=early)]
        given = tuple([_moves.letter_leased(item, worker, ttl, now) for item in free])
        for item in given:
            self._table.save(item, is_change=False)
        return given

    def settle(self, settlements: Sequence[Settlement], now: Instant) -> tuple[Answer, ...]:
        moved: list[tuple[Item, Item]] = []
        answers = tuple([self._settle(one, moved, now) for one in settlements])
        for _, letter in moved:
            self._bonds.letter_ends(letter, now)
        self._bonds.give_keys_back(moved, now)
        for settlement, answer in zip(settlements, answers, strict=True):
            if settlement.follow_ups and answer.verdict is Verdict.APPLIED:
                self._putting.put(settlement.follow_ups, now, bounded=False)
        self._bonds.ended(moved, now)
        return answers

    def _settle(self, settlement: Settlement, moved: list[tuple[Item, Item]], now: Instant) -> Answer:
        item = self._table.items.get(settlement.id)
        if item is None:
            return Answer(settlement.id, Verdict.REFUSED, "no such item")
        if item.deliveries != settlement.delivery:
            return Answer(item.id, Verdict.REFUSED, f"lease was given away: delivery {item.deliveries} is current")
        if item.state in LIVE:
            return Answer(item.id, Verdict.REFUSED, f"it is {item.state}, not a dead letter")
        if item.state is not State.DEAD or item.lease_until is None or not item.worker:
            return Answer(item.id, Verdict.ALREADY)
        after = _moves.letter_settled(item, settlement.decision, now)
        self._table.save(after)
        if after.state is not State.DEAD:
            moved.append((item, after))
        if settlement.attempt is not None:
            self._table.add_attempt(item.id, settlement.attempt)
        return Answer(item.id, Verdict.APPLIED)


def _free(item: Item, worker: str, now: Instant, *, early: bool) -> bool:
    """It lies where somebody can work on it, and nobody else does."""
    if item.letter is None or item.letter.disposition is Disposition.TRASH:
        return False
    if item.lease_until is None or item.lease_until <= now:
        return True
    has = holder(item, now)
    return has == worker or (early and not has)
