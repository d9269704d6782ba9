"""`settle` and `extend` on SQLite: what needs a delivery number to be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from redrive.core import codec
from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Instant, Millis, NewItem
from redrive.core.terms import CANCEL, LIMITED
from redrive.core.verbs import Answer, Extended, Held, Settlement, Verdict
from redrive.errors import ConfigError
from redrive.stores.packing import Packed, is_sealed
from redrive.stores.sqlite import bonds, slots, tied
from redrive.stores.sqlite.memo import BoundMemo
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.rows import short
from redrive.stores.sqlite.tied import BINDING, Tied
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "settle")
_EXTEND = load("sqlite", "extend")
_TERMS = load("sqlite", "terms")

_MOST_ATTEMPTS = ATTEMPTS_FIRST + ATTEMPTS_LAST
_CHARGES = {Charge.ERROR: (1, 0, 0), Charge.CRASH: (0, 1, 0), Charge.NOTHING: (0, 0, 1)}
_FREE = (0, 0, 0)
_STATES: dict[Kind, str] = {"done": "done", "ready": "ready", "open": "dead", "cancelled": "cancelled"}


class _Plan:
    """What a set of settlements writes, gathered so that each table is written once however many they are."""

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._queues: dict[Kind, list[str]] = {"done": [], "ready": [], "open": [], "cancelled": []}
        self._done: dict[tuple[int, int], list[int]] = {}
        self._ready: list[tuple[object, ...]] = []
        self._ended: list[tuple[object, ...]] = []
        self._opened: list[tuple[str, str, str]] = []
        self._results: list[tuple[int, bytes]] = []
        self._in_clear: set[str] = set()
        self._letters: list[tuple[object, ...]] = []
        self._died: list[int] = []
        self._attempts: list[tuple[int, int, bytes]] = []
        self._follow_ups: list[NewItem] = []
        self._bound: list[bonds.Over] = []

    def add(self, settlement: Settlement, seq: int, queue: str, kind: Kind, item: Tied | None) -> None:
        """`kind`: what it counts as then. `item`: what binds it, if anything does; the statements check its ties.

        Follow-ups are put only if it becomes what was decided.
        """
        ties = 0
        if item is not None:
            ties = item.ties & BINDING
            self._bound.append((item, _STATES[kind]))
        decision, delivery = settlement.decision, settlement.delivery
        self._queues[kind].append(queue)
        if isinstance(decision, ToDone):
            self._done.setdefault((delivery, ties), []).append(seq)
            if decision.result is not None:
                self._results.append((seq, decision.result))
                if not is_sealed(decision.result):
                    self._in_clear.add(queue)
        else:
            charge = _FREE if isinstance(decision, ToCancelled) else _CHARGES[decision.charge]
            fence = (*charge, seq, delivery, ties)
            if kind == "ready":
                self._ready.append((self._now + _delay(decision), *fence))
            else:
                self._ended.append((_STATES[kind], self._now, *fence))
            if kind == "open" and isinstance(decision, ToDead):
                self._add_letter(decision, seq, queue)
        if settlement.attempt is not None:
            self._attempts.append((seq, delivery, codec.encode(settlement.attempt)))
        if settlement.follow_ups and kind == _decided(decision):
            self._follow_ups.extend(settlement.follow_ups)

    def _add_letter(self, decision: ToDead, seq: int, queue: str) -> None:
        failure = decision.failure
        names = (failure.cause, failure.type, short(failure.type), failure.category, failure.rule)
        self._letters.append((seq, queue, decision.reason, self._now, *names, codec.encode(failure), decision.route))
        self._opened.append((failure.cause, queue, decision.route))
        self._died.append(seq)

    def end(self, tx: Tx) -> bool:
        """Moves the items. False if one of them was not held by the delivery that says so."""
        moved = 0
        for fence, seqs in self._done.items():
            moved += tx.change(_SQL["to_done"], (self._now, *fence, tied.numbers(seqs)))
        for name, rows in (("to_ready", self._ready), ("to_end", self._ended)):
            if rows:
                moved += tx.change_many(_SQL[name], rows)
        return moved == sum([len(queues) for queues in self._queues.values()])

    def finish(self, tx: Tx) -> None:
        """What goes with the moves: counters, results, letters, evidence, follow-ups, and what others wait for."""
        ties = bonds.ties_of(self._bound)
        bonds.give_keys_back(tx, self._bound, ties)
        for kind, queues in self._queues.items():
            for queue, count in Counter(queues).items():
                tx.moved(queue, "leased", kind, count)
        tx.woken.update(self._queues["ready"])
        for cause, queue, route in self._opened:
            tx.count_cause(cause, queue, 1)
            tx.count_route(route, 1)
        if self._results:
            add_results(tx, self._results)
            tx.in_clear |= self._in_clear
        if self._letters:
            tx.executemany(_SQL["insert_letter"], self._letters)
            tx.change_letters(self._died)
        if self._attempts:
            add_attempts(tx, self._attempts)
        put(tx, self._follow_ups, admit=False)
        if ties & LIMITED:
            slots.leave(tx, [item for item, _ in self._bound])
        if ties:
            bonds.ended(tx, self._bound, ties)


def _decided(decision: Decision) -> Kind:
    """What it counts as, if nothing stands against it."""
    if isinstance(decision, ToDone):
        return "done"
    if isinstance(decision, ToDead):
        return "open"
    return "cancelled" if isinstance(decision, ToCancelled) else "ready"


def _delay(decision: Decision) -> Millis:
    """Of what is ready again."""
    if isinstance(decision, ToDead):
        return decision.otherwise
    return 0 if isinstance(decision, ToDone | ToCancelled) else decision.delay


def settle(tx: Tx, memo: BoundMemo, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
    """First as if all were held and bound as we know, which the statements check; only if not is each looked at."""
    plan = _plan(tx, memo, settlements)
    if plan is not None:
        tx.execute("savepoint held")
        held = plan.end(tx)
        if not held:
            tx.execute("rollback to held")
        tx.execute("release held")
        if held:
            plan.finish(tx)
            return tuple([Answer(settlement.id, Verdict.APPLIED) for settlement in settlements])
    return _Judging(tx).settle(settlements)


def _plan(tx: Tx, memo: BoundMemo, settlements: Sequence[Settlement]) -> _Plan | None:
    """None if this process does not remember where one of the items lies, or more than the items must be asked."""
    plan = _Plan(tx.now)
    for settlement in settlements:
        place = memo.place(settlement.id)
        if place is None:
            return None
        decision = settlement.decision
        if isinstance(decision, ToDead) and decision.route:
            return None
        plan.add(settlement, *place, _decided(decision), memo.tied(settlement.id))
    return plan


class _Judging:
    """Settlements of which each is looked at."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._plan = _Plan(tx.now)
        self._ended: set[int] = set()
        self._asked: list[tuple[int]] = []
        self._rooms: dict[str, int | None] = {}

    def settle(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        tx = self._tx
        rows = _held(tx, [settlement.id for settlement in settlements])
        answers = tuple([self._judge(one, rows.get(place)) for place, one in enumerate(settlements)])
        self._plan.end(tx)
        if self._asked:
            tx.executemany(_TERMS["drop_request"], self._asked)
            tx.executemany(_TERMS["unmark_asked"], self._asked)
        self._plan.finish(tx)
        return answers

    def _judge(self, settlement: Settlement, row: Lease | None) -> Answer:
        verdict, reason = _verdict(row, settlement.delivery, self._ended)
        if row is None or verdict is not Verdict.APPLIED:
            return Answer(settlement.id, verdict, reason)
        item = row.item
        seq, queue, asked = item.seq, item.queue, item.ties & CANCEL != 0
        kind = self._kind(settlement.decision, asked=asked)
        self._ended.add(seq)
        self._plan.add(settlement, seq, queue, kind, item if item.ties & BINDING else None)
        if asked and kind != "cancelled":
            self._asked.append((seq,))
        if kind == "cancelled" and not isinstance(settlement.decision, ToCancelled):
            return Answer(settlement.id, verdict, "cancelled")
        kept = kind == "ready" and isinstance(settlement.decision, ToDead)
        return Answer(settlement.id, Verdict.KEPT if kept else verdict)

    def _kind(self, decision: Decision, *, asked: bool) -> Kind:
        """What it counts as then. Who was asked to cancel does not become ready again."""
        kind = _decided(decision)
        if isinstance(decision, ToDead) and not self._has_room(decision.route):
            kind = "ready"
        return "cancelled" if asked and kind == "ready" else kind

    def _has_room(self, route: str) -> bool:
        """Counts what this call lays there."""
        if not route:
            return True
        if route not in self._rooms:
            row = self._tx.execute(_SQL["route"], (route,)).fetchone()
            unlimited = row is None or row[0] is None
            self._rooms[route] = None if unlimited else row[0] - self._tx.counted_route(route)
        left = self._rooms[route]
        if left is None:
            return True
        self._rooms[route] = left - 1
        return left > 0


class Lease(NamedTuple):
    """An item as it is before it is settled."""

    state: str
    deliveries: int
    item: Tied


def _held(tx: Tx, ids: Sequence[str]) -> dict[int, Lease]:
    """By place among the ids; only of those that are there."""
    rows = tx.execute(_SQL["held"], (named(ids),)).fetchall()
    found = {place: Lease(state, deliveries, Tied(*facts)) for place, state, deliveries, *facts in rows}
    # SQLite's json_each cuts texts at a NUL and would find somebody else.
    return {place: row for place, row in found.items() if row.item.id == ids[place]}


def named(ids: Sequence[str]) -> str:
    """As statements take many at once."""
    try:
        return codec.encode(ids).decode()
    except ConfigError:
        # Half a character is in no item.
        return codec.encode([item_id.encode(errors="replace").decode() for item_id in ids]).decode()


def _verdict(row: Lease | None, delivery: int, ended: set[int]) -> tuple[Verdict, str]:
    """`ended` are items that an earlier settlement of the same call ends."""
    if row is None:
        return Verdict.REFUSED, "no such item"
    if row.deliveries != delivery:
        return Verdict.REFUSED, f"lease was given away: delivery {row.deliveries} is current"
    return (Verdict.ALREADY if row.state != "leased" or row.item.seq in ended else Verdict.APPLIED), ""


def add_results(tx: Tx, results: list[tuple[int, bytes]]) -> None:
    packed = [(seq, body, body.packing) for seq, body in results if isinstance(body, Packed)]
    if packed:
        tx.executemany(_SQL["insert_packed"], packed)
        results = [row for row in results if not isinstance(row[1], Packed)]
    tx.executemany(_SQL["insert_result"], results)


def add_attempts(tx: Tx, attempts: list[tuple[int, int, bytes]]) -> None:
    tx.executemany(_SQL["insert_attempt"], attempts)
    for seq, delivery, _ in attempts:
        # An item has at most as many attempts as deliveries.
        if delivery > _MOST_ATTEMPTS:
            trimmed = tx.change(_SQL["trim_attempts"], (seq, seq, seq, _MOST_ATTEMPTS, ATTEMPTS_FIRST))
            if trimmed > 0:
                tx.execute(_SQL["count_omitted"], (trimmed, seq))


def extend(tx: Tx, held: Sequence[Held], ttl: Millis) -> Extended:
    """First as if nobody had asked for a cancel, which the statement checks."""
    rows = [(tx.now + ttl, one.id, one.delivery, tx.now, CANCEL) for one in held]
    if not rows or tx.change_many(_EXTEND["prolong"], rows) == len(rows):
        return Extended()
    tx.executemany(_EXTEND["prolong"], [(*row[:-1], 0) for row in rows])
    still = _EXTEND["held"]
    found = [(one.id, tx.execute(still, (one.id, one.delivery, tx.now)).fetchone()) for one in held]
    lost = tuple([item_id for item_id, row in found if row is None])
    asked = [item_id for item_id, row in found if row is not None and row[0] & CANCEL and item_id not in lost]
    return Extended(lost, tuple(asked))
