"""`settle` and `extend` on Redis: what needs a delivery number to be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redrive.core import codec
from redrive.core.decide import Charge, ToCancelled, ToDone, ToReady
from redrive.core.item import Millis
from redrive.core.verbs import Answer, Extended, Held, Settlement, Verdict
from redrive.stores.redis.put import entry
from redrive.stores.redis.rows import packed_body, packed_result
from redrive.stores.redis.session import Session
from redrive.stores.redis.texts import packed

_DONE, _READY, _DEAD, _CANCELLED = 1, 2, 3, 4
_ALREADY, _GIVEN_AWAY, _, _KEPT, _CANCELLED_INSTEAD = 1, 2, 3, 4, 5
_PLAIN = ToDone()
_CHARGES = {Charge.ERROR: 9, Charge.CRASH: 10, Charge.NOTHING: -8}
"""Places in the record (lua/prelude.lua); negative for one that is given back."""


class Plan:
    """What settle.lua takes: texts and numbers in one list, and the bodies and evidences that it does not look into."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self.bodies: list[bytes] = []
        self._heads = [self._head(settlement) for settlement in settlements]

    def args(self, then: bytes) -> list[bytes]:
        return [packed(self._heads), then, *self.bodies]

    def body(self, body: bytes) -> int:
        self.bodies.append(body)
        return len(self.bodies)

    def _head(self, one: Settlement) -> tuple[object, ...]:
        decision = one.decision
        attempt = 0 if one.attempt is None else self.body(codec.encode(one.attempt))
        bodies = [(new, self.body(packed_body(new.payload))) for new in one.follow_ups]
        follow_ups = [entry(new, body) for new, body in bodies] or False
        if isinstance(decision, ToDone):
            result = 0 if decision.result is None else self.body(packed_result(decision.result))
            return one.id, one.delivery, _DONE, attempt, follow_ups, result
        if isinstance(decision, ToCancelled):
            return one.id, one.delivery, _CANCELLED, attempt, follow_ups
        charge = _CHARGES[decision.charge]
        if isinstance(decision, ToReady):
            return one.id, one.delivery, _READY, attempt, follow_ups, decision.delay, charge
        why = decision.failure
        error = why.type.rpartition(".")[2]
        evidence = self.body(codec.encode(why))
        letter = (decision.reason, charge, evidence, why.cause, error, why.category, decision.route, decision.otherwise)
        return one.id, one.delivery, _DEAD, attempt, follow_ups, *letter


async def settle(
    session: Session, settlements: Sequence[Settlement], then: bytes = b""
) -> tuple[tuple[Answer, ...], Any, int]:
    """The answers, the next leases as leasing.lua says them, and when."""
    time, others, leases = await session.run("settle", _args(settlements, then))
    answers = [Answer(settlement.id, Verdict.APPLIED) for settlement in settlements]
    for at in range(0, len(others), 3):
        place, verdict, current = others[at : at + 3]
        answers[place - 1] = otherwise(settlements[place - 1].id, verdict, current)
    return tuple(answers), leases, time


def _args(settlements: Sequence[Settlement], then: bytes) -> list[bytes]:
    """Nearly always all are done, and nothing goes with them."""
    flat: list[str | int] = []
    for one in settlements:
        if one.attempt is not None or one.follow_ups or one.decision != _PLAIN:
            return Plan(settlements).args(then)
        flat += (one.id, one.delivery)
    return [packed(flat), then]


def otherwise(item_id: str, verdict: int, current: int) -> Answer:
    if verdict == _ALREADY:
        return Answer(item_id, Verdict.ALREADY)
    if verdict == _GIVEN_AWAY:
        return Answer(item_id, Verdict.REFUSED, f"lease was given away: delivery {current} is current")
    if verdict == _KEPT:
        return Answer(item_id, Verdict.KEPT)
    if verdict == _CANCELLED_INSTEAD:
        return Answer(item_id, Verdict.APPLIED, "cancelled")
    return Answer(item_id, Verdict.REFUSED, "no such item")


async def extend(session: Session, held: Sequence[Held], ttl: Millis) -> Extended:
    if not held:
        return Extended()
    lost, unwanted = await session.run("extend", [packed([(one.id, one.delivery) for one in held]), ttl])
    gone = tuple([held[place - 1].id for place in lost])
    asked = tuple([held[place - 1].id for place in unwanted])
    # Under an earlier delivery it is lost, whoever has it now.
    return Extended(gone, tuple([item_id for item_id in asked if item_id not in gone]))
