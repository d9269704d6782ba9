"""Letters that somebody works on where they lie, on Redis."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.item import Item, Millis
from redrive.core.verbs import Answer, Settlement, Verdict
from redrive.stores.redis import settle
from redrive.stores.redis.rows import ROW, item_of
from redrive.stores.redis.session import Session
from redrive.stores.redis.shelf import meta_of
from redrive.stores.redis.texts import packed

_LIVES = 6


async def lease_letters(
    session: Session, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool, reserved: str
) -> tuple[Item, ...]:
    """One whose payload is damaged comes with its flaw: it stays the letter it is."""
    if not ids:
        return ()
    fields = await session.run("lease_letters", [worker, ttl, int(early), reserved, *dict.fromkeys(ids)])
    return await session.bodies.whole(tuple([item_of(fields[at : at + ROW]) for at in range(0, len(fields), ROW)]))


async def settle_letters(session: Session, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
    if not settlements:
        return ()
    others = await session.run("settle_letters", _args(settlements))
    answers = [Answer(settlement.id, Verdict.APPLIED) for settlement in settlements]
    for place, verdict, what in zip(others[0::3], others[1::3], others[2::3], strict=True):
        one = settlements[place - 1]
        answers[place - 1] = _lives(one.id, what) if verdict == _LIVES else settle.otherwise(one.id, verdict, what)
    return tuple(answers)


def _args(settlements: Sequence[Settlement]) -> list[bytes]:
    """As settle.lua says; where that has the next leases, the audit entries: topic, and where meta and body are."""
    plan = settle.Plan(settlements)
    entries: list[tuple[str, int, int] | bool] = [False] * len(settlements)
    for place, one in enumerate(settlements):
        if one.audit is not None:
            entries[place] = (one.audit.topic, plan.body(meta_of(one.audit)), plan.body(one.audit.body))
    return plan.args(packed(entries) if any(entries) else b"")


def _lives(item_id: str, state: bytes) -> Answer:
    return Answer(item_id, Verdict.REFUSED, f"it is {state.decode()}, not a dead letter")
