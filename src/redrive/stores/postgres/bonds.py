"""What an act on items means for others that are bound to them: bonds.sql and amend.sql do it, for many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.core.terms import ORDERED
from redrive.core.verbs import Change, Replay, Skip
from redrive.stores.postgres.arrays import bigints
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.amend import Place
    from redrive.stores.postgres.session import Session

BOUND = 64
"""Among the ties of an item, besides those of core.terms: it has a row in `terms`."""


async def refused(session: Session, tx: Tx, places: Sequence[Place], change: Change) -> dict[int, str]:
    """Why not, by number. Letters that are to run again have their dedupe keys then, as far as they are free."""
    bound = [place for place in places if place.ties & BOUND]
    if isinstance(change, Skip):
        rows = await tx.execute(session.sql("amend", "blocking"), (bigints([place.seq for place in bound]),))
        heads = {seq for (seq,) in rows}
        return {
            place.seq: "it keeps nothing back: it is not the head of an order key"
            for place in places
            if place.seq not in heads
        }
    if not isinstance(change, Replay) or not bound:
        return {}
    tx.keyless = dict(await tx.execute(session.sql("amend", "retake"), (bigints([p.seq for p in bound]), tx.now)))
    return {} if change.force else {seq: f"its dedupe key is held by {holder}" for seq, holder in tx.keyless.items()}


async def rejoined(session: Session, tx: Tx, places: Sequence[Place]) -> list[Place]:
    """Those with terms are where they belong, and counted there. Gives them."""
    bound = [place for place in places if place.ties & BOUND]
    if bound:
        keyless = bigints([*tx.keyless])
        await tx.execute(session.sql("amend", "call_rejoin"), (bigints([place.seq for place in bound]), keyless))
    return bound


async def let_go(session: Session, tx: Tx, places: Sequence[Place], *, gap: bool) -> None:
    ordered = bigints([place.seq for place in places if place.ties & ORDERED])
    if any(place.ties & ORDERED for place in places):
        ((woken,),) = await tx.execute(session.sql("amend", "call_let_go"), (ordered, gap))
        tx.woken.update(woken)


async def untied(session: Session, tx: Tx, places: Sequence[Place]) -> None:
    """They were ready, and are cancelled."""
    tied = bigints([place.seq for place in places if place.ties])
    if any(place.ties for place in places):
        free = bigints([place.seq for place in places if place.ties and place.kind == "ready"])
        ((woken,),) = await tx.execute(session.sql("amend", "untie"), (tx.now, tied, tied, free))
        tx.woken.update(woken)
