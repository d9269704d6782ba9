"""`prune` and `sweep` on PostgreSQL: what is removed for good, and what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.core.acts import Act
from redrive.core.select import And, Ids, Match, Or, Selection
from redrive.core.verbs import Swept, Tombstone
from redrive.stores import audit, packing
from redrive.stores.postgres.amend import Place, oldest, place_of, recount
from redrive.stores.postgres.arrays import bigints, texts
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

_RESOLVED = Or((Match("state", "=", "done"), Match("state", "=", "cancelled"), Match("disposition", "=", "trash")))


async def prune(session: Session, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
    if limit <= 0:
        return ()

    async def work(tx: Tx) -> tuple[Tombstone, ...]:
        doomed = await oldest(session, tx, And((selection, _RESOLVED)), limit)
        return await _remove(session, tx, doomed, selection, by)

    return await session.write(work)


async def _remove(
    session: Session, tx: Tx, doomed: list[Place], selection: Selection, by: Act
) -> tuple[Tombstone, ...]:
    if not doomed:
        return ()
    seqs = bigints([place.seq for place in doomed])
    digests = {seq: _digest(*found) for seq, *found in await tx.execute(session.sql("prune", "digests"), (seqs,))}
    stones = [
        Tombstone(place.id, place.queue, place.state, digests[place.seq], tx.now, by.actor, by.reason)
        for place in doomed
    ]
    columns = (
        texts([stone.id for stone in stones]),
        texts([stone.queue for stone in stones]),
        texts([stone.state for stone in stones]),
        texts([stone.payload_sha256 for stone in stones]),
    )
    await tx.execute(session.sql("prune", "bury"), (tx.now, by.actor, by.reason, *columns))
    await tx.execute(session.sql("prune", "remove"), (seqs,))
    recount(tx, doomed, None)
    record = audit.AuditRecord("prune", selection, tuple([place.id for place in doomed]))
    await append_acts(session, tx, (audit.entry(record, by),), record.change)
    return tuple(stones)


def _digest(how: int, found: bytes) -> str:
    return packing.digest(packing.Packed(found, how)) if how else found.hex()


async def sweep(session: Session, limit: int, by: Act, cursor: int) -> Swept:
    """A look at so many items in the order of enqueue, without locks; only what is over by then is locked."""

    async def work(tx: Tx) -> Swept:
        await tx.execute(session.sql("sweep", "forget_keys"), (tx.now,))
        if not await tx.execute(session.sql("sweep", "keeps")):
            return Swept()
        ((last, looked_at, over, stale),) = await tx.execute(session.sql("sweep", "look"), (cursor, limit, tx.now))
        doomed: list[Place] = []
        if over:
            await tx.execute(session.sql("amend", "lock"), (bigints(over),))
            rows = await tx.execute(session.sql("sweep", "finished"), (bigints(over), tx.now))
            doomed = [place_of(row) for row in rows]
        await _remove(session, tx, doomed, Ids(tuple([place.id for place in doomed])), by)
        if stale:
            await tx.execute(session.sql("sweep", "drop_results"), (bigints(stale),))
        return Swept(len(doomed), len(stale or ()), last if looked_at == limit else None)

    return await session.write(work)
