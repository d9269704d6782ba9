"""`amend` and `prune` on PostgreSQL: sets of items, in a few statements however many they are.

First the courses are locked, in the order of their numbers; then a new statement reads what is to be judged. One that
locked and read at once could judge a letter by what it was before the lock was free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, assert_never

from redrive.core import select
from redrive.core.select import And, Ids, Match, Or, Selection
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    Act,
    Amended,
    Archive,
    Cancel,
    Change,
    Discard,
    Replay,
    Restore,
    Skipped,
    Tombstone,
    refusal,
)
from redrive.errors import Conflict
from redrive.stores import audit, packing
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.postgres.arrays import bigints, texts
from redrive.stores.postgres.compile import compiled, storable
from redrive.stores.postgres.find import filled, matching
from redrive.stores.postgres.rows import DISPOSITIONS, STATES, Row
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Kind, Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

_RESOLVED = Or((Match("state", "=", "done"), Match("state", "=", "cancelled"), Match("disposition", "=", "trash")))
_LAID: dict[type, Disposition] = {
    Archive: Disposition.ARCHIVED,
    Discard: Disposition.TRASH,
    Restore: Disposition.OPEN,
}
_KINDS: dict[str, Kind] = {
    "ready": "ready",
    "leased": "leased",
    "done": "done",
    "cancelled": "cancelled",
    "open": "open",
    "archived": "archived",
    "trash": "trash",
}


class Place(NamedTuple):
    """What amend and prune need to know of an item."""

    seq: int
    id: str
    queue: str
    state: State
    disposition: Disposition | None
    cause: str | None

    @property
    def kind(self) -> Kind:
        """The counter it is counted in."""
        return _KINDS[self.state if self.disposition is None else self.disposition]


async def amend(session: Session, selection: Selection, change: Change, by: Act, expect: int | None) -> Amended:
    async def work(tx: Tx) -> Amended:
        places, missing = await _meant(session, tx, selection, expect)
        before = await _changed_before(session, tx, places, by)
        changed: list[Place] = []
        already: list[str] = []
        skipped = [Skipped(item_id, "no such item") for item_id in missing]
        for place in places:
            if place.seq in before:
                already.append(place.id)
                continue
            reason = refusal(change, place.state, place.disposition)
            if reason is None:
                changed.append(place)
            else:
                skipped.append(Skipped(place.id, reason))
        ids = tuple([place.id for place in changed])
        if changed:
            await _change(session, tx, changed, change)
            record = audit.AuditRecord(audit.word(change), selection, ids, change)
            (position,) = await append_acts(session, tx, (audit.entry(record, by),), record.change)
            seqs = bigints([place.seq for place in changed])
            await tx.execute(session.sql("amend", "record_deeds"), (position, seqs))
        return Amended(ids, tuple(already), tuple(skipped))

    return await session.write(work)


async def _meant(
    session: Session, tx: Tx, selection: Selection, expect: int | None
) -> tuple[list[Place], Sequence[str]]:
    """The items, locked, and the ids that were named but do not exist."""
    if isinstance(selection, Ids):
        places, missing = await _named(session, tx, selection)
        _expect(len(places), expect)
        return places, missing
    if expect is None:
        return await _oldest(session, tx, selection, PAGE_LIMIT), ()
    return await _expected(session, tx, selection, expect), ()


async def _named(session: Session, tx: Tx, selection: Ids) -> tuple[list[Place], list[str]]:
    """The items in the order of their names, and the ids that do not exist."""
    named = tuple(dict.fromkeys(selection.ids))
    ids: dict[int, str] = dict(await tx.execute(session.sql("amend", "lock_named"), (texts(storable(named)),)))
    rows = await tx.execute(session.sql("amend", "states"), (bigints([*ids]),)) if ids else []
    found = {ids[seq]: _of((seq, ids[seq], *state)) for seq, *state in rows}
    return [found[item_id] for item_id in named if item_id in found], [one for one in named if one not in found]


async def _oldest(session: Session, tx: Tx, selection: Selection, limit: int) -> list[Place]:
    """The first that match, of those that still do when they are locked."""
    way = "oldest_letters" if select.pins_dead(selection) else "oldest_items"
    statement, values = matching(session, selection, tx.now, way)
    seqs = [seq for (seq,) in await tx.execute(statement, (*values, limit))]
    if not seqs:
        return []
    await tx.execute(session.sql("amend", "lock"), (bigints(seqs),))
    where = compiled(selection, tx.now, letters=False)
    statement = session.sql("amend", "places").replace("{where}", filled(session, where.text))
    return [_of(row) for row in await tx.execute(statement, (bigints(seqs), *where.values))]


async def _expected(session: Session, tx: Tx, selection: Selection, expect: int) -> list[Place]:
    """The first that match, if so many do, at an instant when all that are to be changed are locked."""
    where = compiled(selection, tx.now, letters=False)
    statement = session.sql("amend", "counted").replace("{where}", filled(session, where.text))
    held: set[int] = set()
    while True:
        rows = await tx.execute(statement, (*where.values, PAGE_LIMIT))
        _expect(rows[0][6] if rows else 0, expect)
        free = [row[0] for row in rows if row[0] not in held]
        if not free:
            return [_of(row[:6]) for row in rows]
        await tx.execute(session.sql("amend", "lock"), (bigints(free),))
        held.update(free)


def _of(row: Row) -> Place:
    seq, item_id, queue, state, disposition, cause = row
    return Place(seq, item_id, queue, STATES[state], DISPOSITIONS.get(disposition), cause)


def _expect(count: int, expect: int | None) -> None:
    if expect is not None and count != expect:
        raise Conflict(
            f"{count} items match, not {expect}; nothing was changed",
            hint="look again at what the selection finds, then repeat with the new number",
        )


async def _changed_before(session: Session, tx: Tx, places: list[Place], by: Act) -> set[int]:
    if not places:
        return set()
    seqs = bigints([place.seq for place in places])
    return {seq for (seq,) in await tx.execute(session.sql("amend", "done_before"), (seqs, by.request_id))}


async def _change(session: Session, tx: Tx, places: list[Place], change: Change) -> None:
    seqs = bigints([place.seq for place in places])
    match change:
        case Replay(budget, delay):
            values = (seqs, tx.now + delay, tx.now, budget == "once", seqs)
            await tx.execute(session.sql("amend", "replay"), values)
            tx.woken.update([place.queue for place in places])
            after: Kind = "ready"
        case Archive() | Discard() | Restore():
            disposition = _LAID[type(change)]
            await tx.execute(session.sql("amend", "lay"), (str(disposition), seqs))
            after = _KINDS[disposition]
        case Cancel():
            await tx.execute(session.sql("amend", "cancel"), (tx.now, seqs))
            after = "cancelled"
        case _:
            assert_never(change)
    _recount(tx, places, after)


def _recount(tx: Tx, places: list[Place], after: Kind | None) -> None:
    for (queue, kind), count in Counter([(place.queue, place.kind) for place in places]).items():
        tx.count(queue, kind, -count)
        if after is not None:
            tx.count(queue, after, count)
    for place in places:
        if place.cause is not None:
            tx.count_cause(place.cause, place.queue, (after == "open") - (place.kind == "open"))


async def prune(session: Session, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
    if limit <= 0:
        return ()
    return await session.write(lambda tx: _prune(session, tx, selection, limit, by))


async def _prune(session: Session, tx: Tx, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
    doomed = await _oldest(session, tx, And((selection, _RESOLVED)), limit)
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
    _recount(tx, doomed, None)
    record = audit.AuditRecord("prune", selection, tuple([place.id for place in doomed]))
    await append_acts(session, tx, (audit.entry(record, by),), record.change)
    return tuple(stones)


def _digest(how: int, found: bytes) -> str:
    return packing.digest(packing.Packed(found, how)) if how else found.hex()
