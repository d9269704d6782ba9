"""What an act on items means for others that are bound to them: bonds.sql and amend.sql do it, for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from redrive.core.acts import (
    NOT_HEAD,
    Change,
    Move,
    Refusal,
    Replay,
    Skip,
    key_held,
)
from redrive.core.terms import AWAITED, ORDERED, WAITS
from redrive.stores.checks import KEEPS_BACK, bound_to, there_already, waits_for_stranger, waits_in_vain
from redrive.stores.postgres.arrays import bigints
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.amend import Place
    from redrive.stores.postgres.session import Session

BOUND = 64
"""Among the ties of an item, besides those of core.terms: it has a row in `terms`."""


async def refused(session: Session, tx: Tx, places: Sequence[Place], change: Change) -> dict[int, Refusal]:
    """Why not, by number. Letters that are to run again have their dedupe keys then, as far as they are free."""
    bound = [place for place in places if place.ties & BOUND]
    if isinstance(change, Skip):
        rows = await tx.execute(session.sql("amend", "blocking"), (bigints([place.seq for place in bound]),))
        heads = {seq for (seq,) in rows}
        return {place.seq: NOT_HEAD for place in places if place.seq not in heads}
    if isinstance(change, Move):
        there = {place.seq: there_already(change.queue) for place in places if place.queue == change.queue}
        return there | await _bound_here(session, tx, [place for place in bound if place.seq not in there])
    if not isinstance(change, Replay) or not bound:
        return {}
    leaving = [place for place in bound if change.queue not in ("", place.queue)]
    why = await _bound_here(session, tx, leaving)
    if not change.force:
        why |= await _hopeless(session, tx, [place for place in bound if place.seq not in why])
    retaking = bigints([place.seq for place in bound if place.seq not in why])
    tx.keyless = dict(await tx.execute(session.sql("amend", "retake"), (retaking, change.queue, tx.now)))
    if not change.force:
        why |= {seq: key_held(holder) for seq, holder in tx.keyless.items()}
    return why


async def _bound_here(session: Session, tx: Tx, places: Sequence[Place]) -> dict[int, Refusal]:
    """Why letters cannot leave their queues."""
    ordered = [place for place in places if place.ties & ORDERED]
    if not ordered:
        return {}
    rows = await tx.execute(session.sql("amend", "keeping_back"), (bigints([place.seq for place in ordered]),))
    awaited = {place.seq: bound_to(place.queue) for place in ordered if place.ties & AWAITED}
    return awaited | {seq: KEEPS_BACK for (seq,) in rows}


async def _hopeless(session: Session, tx: Tx, places: Sequence[Place]) -> dict[int, Refusal]:
    waiting = [place.seq for place in places if place.ties & WAITS]
    if not waiting:
        return {}
    await tx.execute(session.sql("amend", "lock_awaited"), (bigints(waiting),))
    rows = await tx.execute(session.sql("amend", "hopeless"), (bigints(waiting),))
    return {seq: (waits_for_stranger if unknown else waits_in_vain)(awaited) for seq, awaited, unknown in rows}


async def rejoined(session: Session, tx: Tx, places: Sequence[Place], *, forced: bool) -> list[Place]:
    """Those with terms are where they belong, and counted there. Gives them."""
    bound = [place for place in places if place.ties & BOUND]
    if bound:
        keyless = bigints([*tx.keyless])
        seqs = bigints([place.seq for place in bound])
        await tx.execute(session.sql("amend", "call_rejoin"), (seqs, keyless, forced))
    return bound


async def let_go(session: Session, tx: Tx, places: Sequence[Place], *, gap: bool) -> None:
    ordered = bigints([place.seq for place in places if place.ties & ORDERED])
    if any(place.ties & ORDERED for place in places):
        ((woken,),) = await tx.execute(session.sql("amend", "call_let_go"), (ordered, gap))
        tx.woken.update(woken)


DEAD, CANCELLED = 2, 4
"""How an item ended, as bonds.sql has it."""


async def untied(session: Session, tx: Tx, places: Sequence[Place], ending: int) -> None:
    """They were ready, and are dead or cancelled."""
    tied = bigints([place.seq for place in places if place.ties])
    if any(place.ties for place in places):
        free = bigints([place.seq for place in places if place.ties and place.kind == "ready"])
        bits = reduce(or_, [place.ties for place in places])
        ((woken,),) = await tx.execute(session.sql("amend", "untie"), (tx.now, tied, ending, tied, free, bits))
        tx.woken.update(woken)
