"""`settle`, `extend` and `reclaim` on SQLite: everything that needs a delivery number to be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest
from typing import Generic, NamedTuple, TypeVar, assert_never

from redrive.core import codec
from redrive.core.decide import Charge, ToDead, ToDone, ToReady
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Item, Millis
from redrive.core.verbs import Answer, Extended, Held, Settlement, Verdict
from redrive.stores.sqlite.memo import Memo
from redrive.stores.sqlite.put import put
from redrive.stores.sqlite.rows import item_of, short
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "settle")
_EXTEND = load("sqlite", "extend")
_RECLAIM = load("sqlite", "reclaim")
_GET = load("sqlite", "get")

D = TypeVar("D")

_MOST_ATTEMPTS = ATTEMPTS_FIRST + ATTEMPTS_LAST
_EVER = 2**63 - 1
_CHARGES = {Charge.ERROR: (1, 0, 0), Charge.CRASH: (0, 1, 0), Charge.NOTHING: (0, 0, 1)}


class Placed(NamedTuple):
    """A settlement with where its item lies."""

    settlement: Settlement
    seq: int
    queue: str


class _Ended(NamedTuple, Generic[D]):
    settlement: Settlement
    seq: int
    queue: str
    decision: D


class _Kinds:
    """Settlements by what becomes of their items."""

    def __init__(self, placed: list[Placed]) -> None:
        self.done: list[_Ended[ToDone]] = []
        self.ready: list[_Ended[ToReady]] = []
        self.dead: list[_Ended[ToDead]] = []
        for settlement, seq, queue in placed:
            match settlement.decision:
                case ToDone() as decision:
                    self.done.append(_Ended(settlement, seq, queue, decision))
                case ToReady() as decision:
                    self.ready.append(_Ended(settlement, seq, queue, decision))
                case ToDead() as decision:
                    self.dead.append(_Ended(settlement, seq, queue, decision))
                case _:
                    assert_never(settlement.decision)


def settle(tx: Tx, memo: Memo, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
    """First as if all were held, which the statements check; only if one was not is each looked at."""
    placed = _placed(memo, settlements)
    if placed is not None:
        kinds = _Kinds(placed)
        tx.execute("savepoint held")
        if _end(tx, kinds):
            tx.execute("release held")
            _finish(tx, memo, placed, kinds)
            return tuple([Answer(settlement.id, Verdict.APPLIED) for settlement in settlements])
        tx.execute("rollback to held")
        tx.execute("release held")
    judged = [_judge(tx, settlement) for settlement in settlements]
    answers, held = _without_repeats(judged)
    kinds = _Kinds(held)
    _end(tx, kinds)
    _finish(tx, memo, held, kinds)
    return answers


def _placed(memo: Memo, settlements: Sequence[Settlement]) -> list[Placed] | None:
    placed: list[Placed] = []
    for settlement in settlements:
        place = memo.place(settlement.id)
        if place is None:
            return None
        placed.append(Placed(settlement, *place))
    return placed if len({settlement.id for settlement in settlements}) == len(placed) else None


def _judge(tx: Tx, settlement: Settlement) -> Answer | Placed:
    row = tx.execute(_SQL["held"], (settlement.id,)).fetchone()
    if row is None:
        return Answer(settlement.id, Verdict.REFUSED, "no such item")
    seq, queue, state, deliveries = row
    if deliveries != settlement.delivery:
        return Answer(settlement.id, Verdict.REFUSED, f"lease was given away: delivery {deliveries} is current")
    if state != "leased":
        return Answer(settlement.id, Verdict.ALREADY)
    return Placed(settlement, seq, queue)


def _without_repeats(judged: list[Answer | Placed]) -> tuple[tuple[Answer, ...], list[Placed]]:
    """A second settlement of one delivery in the same call finds that it has ended."""
    answers: list[Answer] = []
    held: dict[int, Placed] = {}
    for one in judged:
        if isinstance(one, Answer):
            answers.append(one)
            continue
        again = held.setdefault(one.seq, one) is not one
        answers.append(Answer(one.settlement.id, Verdict.ALREADY if again else Verdict.APPLIED))
    return tuple(answers), list(held.values())


def _end(tx: Tx, kinds: _Kinds) -> bool:
    """Moves the items, each kind of decision in one statement. False if one of them was not held so."""
    now = tx.now
    moves: dict[str, list[tuple[object, ...]]] = {
        "to_done": [(now, seq, s.id, s.delivery) for s, seq, _, _ in kinds.done],
        "to_ready": [(now + d.delay, *_CHARGES[d.charge], seq, s.id, s.delivery) for s, seq, _, d in kinds.ready],
        "to_dead": [(now, *_CHARGES[d.charge], seq, s.id, s.delivery) for s, seq, _, d in kinds.dead],
    }
    return all(not rows or tx.executemany(_SQL[name], rows).rowcount == len(rows) for name, rows in moves.items())


def _finish(tx: Tx, memo: Memo, placed: list[Placed], kinds: _Kinds) -> None:
    """What goes with the moves: counters, results, letters, evidence, follow-ups."""
    _count(tx, "done", [one.queue for one in kinds.done])
    _count(tx, "ready", [one.queue for one in kinds.ready])
    _count(tx, "open", [one.queue for one in kinds.dead])
    tx.woken.update([one.queue for one in kinds.ready])
    results = [(seq, d.result) for _, seq, _, d in kinds.done if d.result is not None]
    if results:
        tx.executemany(_SQL["insert_result"], results)
    if kinds.dead:
        _add_letters(tx, kinds.dead)
    for settlement, seq, _ in placed:
        memo.forget(settlement.id)
        if settlement.attempt is not None:
            _add_attempt(tx, seq, settlement.delivery, codec.encode(settlement.attempt))
        if settlement.follow_ups:
            put(tx, settlement.follow_ups)


def _count(tx: Tx, kind: Kind, queues: list[str]) -> None:
    for queue, count in Counter(queues).items():
        tx.count(queue, "leased", -count)
        tx.count(queue, kind, count)


def _add_letters(tx: Tx, dead: list[_Ended[ToDead]]) -> None:
    rows = []
    for _, seq, queue, decision in dead:
        failure = decision.failure
        tx.count_cause(failure.cause, queue, 1)
        names = (failure.cause, failure.type, short(failure.type), failure.category, failure.rule)
        rows.append((seq, queue, decision.reason, tx.now, *names, codec.encode(failure)))
    tx.executemany(_SQL["insert_letter"], rows)


def _add_attempt(tx: Tx, seq: int, delivery: int, body: bytes) -> None:
    tx.execute(_SQL["insert_attempt"], (seq, delivery, body))
    # An item has at most as many attempts as deliveries.
    if delivery > _MOST_ATTEMPTS:
        trimmed = tx.execute(_SQL["trim_attempts"], (seq, ATTEMPTS_FIRST, _MOST_ATTEMPTS)).rowcount
        if trimmed > 0:
            tx.execute(_SQL["count_omitted"], (trimmed, seq))


def extend(tx: Tx, held: Sequence[Held], ttl: Millis) -> Extended:
    rows = [(tx.now + ttl, one.id, one.delivery, tx.now) for one in held]
    if not rows or tx.executemany(_EXTEND["prolong"], rows).rowcount == len(rows):
        return Extended()
    still = _EXTEND["held"]
    lost = [one.id for one in held if tx.execute(still, (one.id, one.delivery, tx.now)).fetchone() is None]
    return Extended(tuple(lost))


class Reclaim(NamedTuple):
    queues: tuple[str, ...]
    ttl: Millis
    limit: int
    ids: tuple[str, ...] | None
    force: bool


def reclaim(tx: Tx, ask: Reclaim) -> tuple[Item, ...]:
    chosen = nsmallest(max(0, ask.limit), _reclaimable(tx, ask))
    until = tx.now + ask.ttl
    tx.executemany(_RECLAIM["take"], [(until, seq) for _, seq in chosen])
    return tuple([item_of(tx.execute(_GET["by_seq"], (seq,)).fetchone()) for _, seq in chosen])


def _reclaimable(tx: Tx, ask: Reclaim) -> list[tuple[int, int]]:
    """(lease end, seq) of what may be taken."""
    horizon = _EVER if ask.force else tx.now
    found: list[tuple[int, int]] = []
    if ask.ids is None:
        for queue in ask.queues:
            found += tx.execute(_RECLAIM["expired"], (queue, horizon, max(0, ask.limit)))
        return found
    for item_id in ask.ids:
        row = tx.execute(_RECLAIM["one"], (item_id, horizon)).fetchone()
        if row is not None and row[2] in ask.queues:
            found.append((row[0], row[1]))
    return found
