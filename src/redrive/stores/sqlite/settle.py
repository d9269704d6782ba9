"""`settle` and `extend` on SQLite: what needs a delivery number to be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from redrive.core import codec
from redrive.core.decide import Charge, ToDead, ToDone, ToReady
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Instant, Millis, NewItem
from redrive.core.verbs import Answer, Extended, Held, Settlement, Verdict
from redrive.stores.memo import Memo
from redrive.stores.packing import Packed
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.rows import Row, short
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "settle")
_EXTEND = load("sqlite", "extend")

_MOST_ATTEMPTS = ATTEMPTS_FIRST + ATTEMPTS_LAST
_CHARGES = {Charge.ERROR: (1, 0, 0), Charge.CRASH: (0, 1, 0), Charge.NOTHING: (0, 0, 1)}


class _Plan:
    """What a set of settlements writes, gathered so that each table is written once however many they are."""

    def __init__(self, now: Instant) -> None:
        self._now = now
        self._seqs: list[int] = []
        self._queues: dict[Kind, list[str]] = {"done": [], "ready": [], "open": []}
        self._done: dict[int, list[int]] = {}
        self._ready: list[tuple[object, ...]] = []
        self._dead: list[tuple[object, ...]] = []
        self._causes: list[tuple[str, str]] = []
        self._results: list[tuple[int, bytes]] = []
        self._letters: list[tuple[object, ...]] = []
        self._attempts: list[tuple[int, int, bytes]] = []
        self._follow_ups: list[NewItem] = []

    def add(self, settlement: Settlement, seq: int, queue: str) -> None:
        decision, delivery = settlement.decision, settlement.delivery
        if isinstance(decision, ToDone):
            self._queues["done"].append(queue)
            self._done.setdefault(delivery, []).append(seq)
            if decision.result is not None:
                self._results.append((seq, decision.result))
        elif isinstance(decision, ToReady):
            self._queues["ready"].append(queue)
            self._ready.append((self._now + decision.delay, *_CHARGES[decision.charge], seq, delivery))
        else:
            self._queues["open"].append(queue)
            self._dead.append((self._now, *_CHARGES[decision.charge], seq, delivery))
            self._add_letter(decision, seq, queue)
        if settlement.attempt is not None:
            self._attempts.append((seq, delivery, codec.encode(settlement.attempt)))
        if settlement.follow_ups:
            self._follow_ups.extend(settlement.follow_ups)

    def _add_letter(self, decision: ToDead, seq: int, queue: str) -> None:
        failure = decision.failure
        names = (failure.cause, failure.type, short(failure.type), failure.category, failure.rule)
        self._letters.append((seq, queue, decision.reason, self._now, *names, codec.encode(failure)))
        self._causes.append((failure.cause, queue))

    def end(self, tx: Tx) -> bool:
        """Moves the items. False if one of them was not held by the delivery that says so."""
        moved = 0
        for delivery, seqs in self._done.items():
            moved += tx.change(_SQL["to_done"], (self._now, delivery, codec.encode(seqs).decode()))
        for name, rows in (("to_ready", self._ready), ("to_dead", self._dead)):
            if rows:
                moved += tx.change_many(_SQL[name], rows)
        return moved == sum([len(queues) for queues in self._queues.values()])

    def finish(self, tx: Tx) -> None:
        """What goes with the moves: counters, results, letters, evidence, follow-ups."""
        for kind, queues in self._queues.items():
            for queue, count in Counter(queues).items():
                tx.count(queue, "leased", -count)
                tx.count(queue, kind, count)
        tx.woken.update(self._queues["ready"])
        for cause, queue in self._causes:
            tx.count_cause(cause, queue, 1)
        if self._results:
            _add_results(tx, self._results)
        if self._letters:
            tx.executemany(_SQL["insert_letter"], self._letters)
        if self._attempts:
            _add_attempts(tx, self._attempts)
        put(tx, self._follow_ups)


def settle(tx: Tx, memo: Memo, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
    """First as if all were held, which the statements check; only if one was not is each looked at."""
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
    plan, answers = _judged(tx, settlements)
    plan.end(tx)
    plan.finish(tx)
    return answers


def _plan(tx: Tx, memo: Memo, settlements: Sequence[Settlement]) -> _Plan | None:
    """None if this process does not remember where one of the items lies."""
    plan = _Plan(tx.now)
    for settlement in settlements:
        place = memo.place(settlement.id)
        if place is None:
            return None
        plan.add(settlement, *place)
    return plan


def _judged(tx: Tx, settlements: Sequence[Settlement]) -> tuple[_Plan, tuple[Answer, ...]]:
    plan = _Plan(tx.now)
    answers: list[Answer] = []
    ended: set[int] = set()
    for settlement in settlements:
        row = tx.execute(_SQL["held"], (settlement.id,)).fetchone()
        verdict, reason = _verdict(row, settlement.delivery, ended)
        answers.append(Answer(settlement.id, verdict, reason))
        if verdict is Verdict.APPLIED:
            seq, queue, _, _ = row
            ended.add(seq)
            plan.add(settlement, seq, queue)
    return plan, tuple(answers)


def _verdict(row: Row | None, delivery: int, ended: set[int]) -> tuple[Verdict, str]:
    """`ended` are items that an earlier settlement of the same call ends."""
    if row is None:
        return Verdict.REFUSED, "no such item"
    seq, _, state, deliveries = row
    if deliveries != delivery:
        return Verdict.REFUSED, f"lease was given away: delivery {deliveries} is current"
    return (Verdict.ALREADY if state != "leased" or seq in ended else Verdict.APPLIED), ""


def _add_results(tx: Tx, results: list[tuple[int, bytes]]) -> None:
    packed = [(seq, body, body.packing) for seq, body in results if isinstance(body, Packed)]
    if packed:
        tx.executemany(_SQL["insert_packed"], packed)
        results = [row for row in results if not isinstance(row[1], Packed)]
    tx.executemany(_SQL["insert_result"], results)


def _add_attempts(tx: Tx, attempts: list[tuple[int, int, bytes]]) -> None:
    tx.executemany(_SQL["insert_attempt"], attempts)
    for seq, delivery, _ in attempts:
        # An item has at most as many attempts as deliveries.
        if delivery > _MOST_ATTEMPTS:
            trimmed = tx.change(_SQL["trim_attempts"], (seq, seq, seq, _MOST_ATTEMPTS, ATTEMPTS_FIRST))
            if trimmed > 0:
                tx.execute(_SQL["count_omitted"], (trimmed, seq))


def extend(tx: Tx, held: Sequence[Held], ttl: Millis) -> Extended:
    rows = [(tx.now + ttl, one.id, one.delivery, tx.now) for one in held]
    if not rows or tx.change_many(_EXTEND["prolong"], rows) == len(rows):
        return Extended()
    still = _EXTEND["held"]
    lost = [one.id for one in held if tx.execute(still, (one.id, one.delivery, tx.now)).fetchone() is None]
    return Extended(tuple(lost))
