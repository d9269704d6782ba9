"""`settle` and `extend` on PostgreSQL: what needs a delivery number to be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive.core import codec
from redrive.core.decide import Charge, ToCancelled, ToDead, ToDone, ToReady
from redrive.core.item import Millis, NewItem
from redrive.core.verbs import Answer, Extended, Held, LeaseRequest, Settlement, Verdict
from redrive.stores.packing import Packed
from redrive.stores.postgres import lease
from redrive.stores.postgres.arrays import Texts, bigints, bodies, integers, smallints, texts
from redrive.stores.postgres.put import columns
from redrive.stores.postgres.rows import letter_names

if TYPE_CHECKING:
    from redrive.stores.bodies import Judged
    from redrive.stores.memo import Memo
    from redrive.stores.postgres.session import Session

_DONE, _READY, _DEAD, _CANCELLED, _ONLY_JUDGED = 0, 1, 2, 4, 9
_CHARGES = {Charge.ERROR: 1, Charge.CRASH: 2, Charge.NOTHING: 3}
_NOBODY = (None, None, 0, *(None,) * 11)
"""The lease request of a settle without one."""

Outcome = tuple[tuple[Answer, ...], "list[Judged] | None", bool]
"""The answers; what was leased then (None: nothing was asked for), and whether a suspect waits."""


async def settle(session: Session, settlements: Sequence[Settlement], then: LeaseRequest | None) -> Outcome:
    memo = session.memo
    ask = then
    if then is not None and memo.knows_nothing_was_given(then):
        ask = None
    look = None if ask is None else session.floors.look(ask)
    request = _NOBODY if ask is None or look is None else lease.wanted(ask, look)
    places = [memo.place(settlement.id) for settlement in settlements]
    held = (
        bigints([0 if place is None else place[0] for place in places]),
        _ids([settlement.id for settlement in settlements], places),
        integers([settlement.delivery for settlement in settlements]),
        # Only so that locks are taken in their order: whoever has no key here, or is not remembered, may have one.
        None in places or any(settlement.id in session.ordered for settlement in settlements),
    )
    plan = _plan(settlements)
    if plan is None:
        rows = await session.call(session.sql("settle", "finish"), (session.pinned(), *held, *request))
    else:
        rows = await session.call(session.sql("settle", "call"), (session.pinned(), *held, *plan, *request))
    answer = lease.read(rows)
    memo.forget(settlements)
    session.ordered.difference_update([settlement.id for settlement in settlements])
    session.floors.drop(answer.woken)
    session.wake(_woken(settlements, places, answer) | answer.woken)
    answers = tuple([_answer(each, place, answer) for place, each in enumerate(settlements, 1)])
    if then is None:
        return answers, None, False
    if ask is not None and look is not None:
        lease.given(session, ask, look, answer)
    return answers, answer.judged, answer.suspect_waits


def _ids(ids: Sequence[str], places: Sequence[object]) -> Texts | None:
    """Only if one is not remembered, and must be looked up."""
    if None not in places:
        return None
    return texts([possible(item_id) if place is None else "" for item_id, place in zip(ids, places, strict=True)])


def possible(item_id: str) -> str:
    """What no id can be is nobody's id."""
    if "\0" in item_id:
        return ""
    return item_id if item_id.isascii() else item_id.encode(errors="ignore").decode()


def _answer(settlement: Settlement, place: int, said: lease.Answer) -> Answer:
    if place in said.kept:
        return Answer(settlement.id, Verdict.KEPT)
    if place not in said.refused:
        return Answer(settlement.id, Verdict.APPLIED, "cancelled" if place in said.cancelled else "")
    current = said.refused[place]
    if current is None:
        return Answer(settlement.id, Verdict.REFUSED, "no such item")
    if current != settlement.delivery:
        return Answer(settlement.id, Verdict.REFUSED, f"lease was given away: delivery {current} is current")
    return Answer(settlement.id, Verdict.ALREADY)


def _woken(
    settlements: Sequence[Settlement], places: Sequence[tuple[int, str] | None], answer: lease.Answer
) -> set[str]:
    """Queues in which something became ready. Of an item that is not remembered the queue is not known: all of them."""
    woken: set[str] = set()
    for number, settlement in enumerate(settlements):
        if settlement.follow_ups:
            woken.update([new.queue for new in settlement.follow_ups])
        place = places[number]
        if (settlement.decision.__class__ is ToReady or number + 1 in answer.kept) and number + 1 not in answer.refused:
            woken.add("" if place is None else place[1])
    return woken


def _plan(settlements: Sequence[Settlement]) -> tuple[Any, ...] | None:
    """The arrays of settle.sql; None if all are simply done."""
    seen: set[tuple[str, int]] = set()
    for settlement in settlements:
        decision = settlement.decision
        if (
            decision.__class__ is not ToDone
            or settlement.attempt is not None
            or settlement.follow_ups
            or decision.result is not None
        ):
            return _Plan(settlements).arrays()
        seen.add((settlement.id, settlement.delivery))
    return None if len(seen) == len(settlements) else _Plan(settlements).arrays()


class _Plan:
    """What a set of settlements writes, gathered so that each table is written once however many they are."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._moves: list[tuple[int, Millis, int]] = []
        self._results: list[tuple[int, int, bytes]] = []
        self._attempts: list[tuple[int, bytes]] = []
        self._letters: list[tuple[Any, ...]] = []
        self._owners: list[int] = []
        self._follow_ups: list[NewItem] = []
        seen: set[tuple[str, int]] = set()
        for place, settlement in enumerate(settlements, 1):
            key = (settlement.id, settlement.delivery)
            if key in seen:
                # The first of the same counts. What the others say is judged after it.
                self._moves.append((_ONLY_JUDGED, 0, 0))
                continue
            seen.add(key)
            self._add(place, settlement)

    def _add(self, place: int, settlement: Settlement) -> None:
        decision = settlement.decision
        if isinstance(decision, ToDone):
            self._moves.append((_DONE, 0, 0))
            result = decision.result
            if result is not None:
                self._results.append((place, result.packing if isinstance(result, Packed) else 0, result))
        elif isinstance(decision, ToReady):
            self._moves.append((_READY, decision.delay, _CHARGES[decision.charge]))
        elif isinstance(decision, ToCancelled):
            self._moves.append((_CANCELLED, 0, 0))
        else:
            self._moves.append((_DEAD, decision.otherwise, _CHARGES[decision.charge]))
            self._add_letter(place, decision)
        if settlement.attempt is not None:
            self._attempts.append((place, codec.encode(settlement.attempt)))
        for new in settlement.follow_ups:
            self._owners.append(place)
            self._follow_ups.append(new)

    def _add_letter(self, place: int, decision: ToDead) -> None:
        names = letter_names(decision.reason, decision.failure, decision.route)
        self._letters.append((place, *names, codec.encode(decision.failure)))

    def arrays(self) -> tuple[Any, ...]:
        kinds, delays, charges = zip(*self._moves, strict=True)
        result_places, packings, results = _columns(self._results, 3)
        attempt_places, attempts = _columns(self._attempts, 2)
        letter_places, *names, failures = _columns(self._letters, 9)
        return (
            *(smallints(kinds), bigints(delays), smallints(charges)),
            *(integers(result_places), smallints(packings), bodies(results)),
            *(integers(attempt_places), bodies(attempts)),
            *(integers(letter_places), *map(texts, names), bodies(failures)),
            *(integers(self._owners), *columns(self._follow_ups)),
        )


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    return tuple(zip(*rows, strict=True)) if rows else ((),) * width


async def extend(session: Session, held: Sequence[Held], ttl: Millis) -> Extended:
    if not held:
        return Extended()
    memo: Memo = session.memo
    each = list(dict.fromkeys([(one.id, one.delivery) for one in held]))
    places = [memo.place(item_id) for item_id, _ in each]
    seqs = bigints([0 if place is None else place[0] for place in places])
    ids = _ids([item_id for item_id, _ in each], places)
    params = (session.pinned(), seqs, ids, integers([delivery for _, delivery in each]), ttl)
    rows = await session.call(session.sql("extend", "call"), params)
    lost = {each[place - 1] for place, asked in rows if not asked}
    wanted = {each[place - 1] for place, asked in rows if asked}
    gone = tuple([one.id for one in held if (one.id, one.delivery) in lost])
    return Extended(gone, tuple([one.id for one in held if (one.id, one.delivery) in wanted and one.id not in gone]))
