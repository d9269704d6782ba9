"""Between rows and values. A payload is checked against its checksum whenever it is read.

What is packed stays so here: unpacking takes time, and this runs inside transactions.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from redrive.core import codec
from redrive.core.item import Failure, Item, Letter, Revision, Terms
from redrive.core.lanes import PRIORITIES
from redrive.core.states import Disposition, State
from redrive.core.terms import HOLDS, TAGGED, parked_hold
from redrive.core.verbs import Tombstone
from redrive.stores.bodies import Judged, flawed, judged_revision
from redrive.stores.packing import Packed, fault
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_TAGS = load("sqlite", "tags")

Row = tuple[Any, ...]

BODY, SEQ, DUE, CRC, PACKING, TIES, PRIORITY, TERMS, GAP, KIND, RELEASE = 2, 3, 5, 13, 14, 15, 16, 17, 18, 22, 23
"""Where lease.pick has them."""

STATES = {str(state): state for state in State}
DISPOSITIONS = {str(disposition): disposition for disposition in Disposition}


def item_of(row: Row) -> Item:
    """From the columns of get.sql, for those who look: one that is damaged must not keep them from the others."""
    item, wrong = judged_item(row)
    return item if wrong is None else flawed(item, wrong)


def judged_item(row: Row) -> Judged:
    """From the columns of get.sql."""
    item_id, queue, body, seq, state = row[:5]
    crc, reason, died_at, disposition, failure, packing, result_packing = row[20:27]
    route, priority, hold, parked, terms, gap, cancel, tags, label, kind, release, reserved = row[27:39]
    letter = None
    if reason is not None:
        letter = Letter(reason, died_at, DISPOSITIONS[disposition], codec.decode(failure, Failure), route, reserved)
    (enqueued, due, renewed, deliveries, attempt, errors, crashes, replays, last_chance, alone) = row[5:15]
    (worker, leased_at, lease_until, ended_at, result) = row[15:20]
    item = Item(
        item_id,
        queue,
        Packed(body, packing) if packing else body,
        seq,
        STATES[state],
        enqueued,
        due,
        renewed,
        deliveries,
        attempt,
        errors,
        crashes,
        replays,
        last_chance != 0,
        alone != 0,
        worker,
        leased_at,
        lease_until,
        ended_at,
        Packed(result, result_packing) if result_packing else result,
        letter,
        "",
        PRIORITIES[priority],
        _hold(hold, parked, label),
        gap or "",
        cancel or "",
        None if terms is None else codec.decode(terms, Terms),
        () if tags is None else tuple(sorted(codec.decode(tags.encode(), list[str]))),
        kind,
        release or "",
    )
    return item, fault(body, crc, packing)


def _hold(hold: int, in_parked_line: int | None, label: str | None) -> str:
    if HOLDS[hold] == "parked":
        return parked_hold(label or "")
    return "parked:order" if hold and in_parked_line else HOLDS[hold]


def leased_item(tx: Tx, row: Row, worker: str, until: int, alone: bool) -> Item:  # noqa: FBT001 - on the hot path
    """From the columns of lease.pick, which has counted already."""
    item_id, queue, body, seq, put_at, due, renewed, given, attempt, errors, crashes, replays, last = row[:CRC]
    packing = row[PACKING]
    item = Item(
        item_id,
        queue,
        Packed(body, packing) if packing else body,
        seq,
        State.LEASED,
        put_at,
        due,
        renewed,
        given,
        attempt,
        errors,
        crashes,
        replays,
        last != 0,
        alone,
        worker,
        tx.now,
        until,
        kind=row[KIND],
        release=row[RELEASE] or "",
    )
    return _bound(tx, item, row) if row[PRIORITY] or row[TIES] else item


def _bound(tx: Tx, item: Item, row: Row) -> Item:
    """As few are."""
    terms = None if row[TERMS] is None else codec.decode(row[TERMS], Terms)
    if row[TIES] & TAGGED:
        item = replace(item, tags=tuple([tag for (tag,) in tx.execute(_TAGS["of_one"], (item.seq,))]))
    if row[PRIORITY] or row[GAP]:
        return replace(item, priority=PRIORITIES[row[PRIORITY]], terms=terms, gap=row[GAP] or "")
    return replace(item, terms=terms)


def revision_of(row: Row) -> Revision:
    """From the columns of get.revisions."""
    number, body, packing, crc, at, actor, reason = row
    revision = Revision(number, Packed(body, packing) if packing else body, at, actor, reason)
    return judged_revision(revision, fault(body, crc, packing))


def tombstone_of(row: Row) -> Tombstone:
    item_id, queue, state, digest, at, actor, reason = row
    return Tombstone(item_id, queue, STATES[state], digest, at, actor, reason)


def short(error: str) -> str:
    """The class of an error without its module, as core.select compares it."""
    return error.rpartition(".")[2]
