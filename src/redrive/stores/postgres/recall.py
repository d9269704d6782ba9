"""Letters as they were when they were replayed, on PostgreSQL: kept by every replay, until the item is pruned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from redrive.core.acts import Refusal, recall_refusal
from redrive.core.terms import ORDERED
from redrive.stores.postgres.arrays import bigints, smallints, texts
from redrive.stores.postgres.bonds import CANCELLED, DEAD
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.amend import Place
    from redrive.stores.postgres.session import Session

_HEAD = 1


class Kept(NamedTuple):
    """What recall.die gives."""

    seq: int
    queue: str
    disposition: str
    cause: str
    route: str
    place: int
    gap: str
    role: int


def _numbers(places: Sequence[Place]) -> bytes:
    return bigints([place.seq for place in places])


async def keep(session: Session, tx: Tx, places: Sequence[Place]) -> None:
    await tx.execute(session.sql("recall", "keep"), (_numbers(places),))


async def refused(session: Session, tx: Tx, places: Sequence[Place]) -> dict[int, Refusal]:
    """Why not, by number."""
    kept: dict[int, int] = dict(await tx.execute(session.sql("recall", "deliveries"), (_numbers(places),)))
    why = {place.seq: recall_refusal(place.state, place.deliveries, kept.get(place.seq)) for place in places}
    return {seq: reason for seq, reason in why.items() if reason is not None}


async def die(session: Session, tx: Tx, places: Sequence[Place]) -> dict[int, Kept]:
    """They are letters again where they waited, and those that wait for them know; the counters are the caller's."""
    rows = await tx.execute(session.sql("recall", "die"), (_numbers(places),))
    kept = {row[0]: Kept(*row) for row in rows}
    tied = [place for place in places if place.ties]
    if tied:
        heads = {one.seq for one in kept.values() if one.role == _HEAD}
        ends = [DEAD if place.seq in heads and kept[place.seq].queue == place.queue else CANCELLED for place in tied]
        free = [place for place in tied if place.kind == "ready"]
        bits = reduce(or_, [place.ties for place in tied])
        values = (tx.now, _numbers(tied), smallints(ends), _numbers(free), bits)
        ((woken,),) = await tx.execute(session.sql("recall", "untie"), values)
        tx.woken.update(woken)
    return kept


async def put_back(session: Session, tx: Tx, places: Sequence[Place], kept: dict[int, Kept]) -> None:
    """In their lines, in the queues that they have now."""
    letters = sorted([kept[place.seq] for place in places if place.ties & ORDERED], key=lambda one: one.place)
    if letters:
        seqs, _, _, _, _, numbers, gaps, roles = zip(*letters, strict=True)
        values = (bigints(seqs), bigints(numbers), texts(gaps), bigints(roles))
        await tx.execute(session.sql("recall", "call_put_back"), values)
