"""Between rows and values. A payload is checked against its checksum whenever it is read."""

from __future__ import annotations

import zlib
from typing import Any

from redrive.core import codec
from redrive.core.item import Failure, Item, Letter
from redrive.core.states import Disposition, State
from redrive.core.verbs import Tombstone
from redrive.errors import StoreCorrupt

Row = tuple[Any, ...]

STATES = {str(state): state for state in State}
DISPOSITIONS = {str(disposition): disposition for disposition in Disposition}


def sound(body: bytes | None, crc: int | None) -> bool:
    return body is not None and zlib.crc32(body) == crc


def item_of(row: Row) -> Item:
    """From the columns of get.sql."""
    item_id, queue, body, seq, state = row[:5]
    crc, reason, died_at, disposition, failure = row[20:25]
    if not sound(body, crc):
        raise StoreCorrupt(
            f"the payload of item {item_id} is damaged: its checksum does not fit",
            hint="restore it from a backup, or discard and prune the item",
        )
    letter = None
    if reason is not None:
        letter = Letter(reason, died_at, DISPOSITIONS[disposition], codec.decode(failure, Failure))
    (enqueued, due, renewed, deliveries, attempt, errors, crashes, replays, last_chance, alone) = row[5:15]
    (worker, leased_at, lease_until, ended_at, result) = row[15:20]
    return Item(
        item_id,
        queue,
        body,
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
        result,
        letter,
    )


def leased_item(row: Row, worker: str, now: int, until: int, alone: bool) -> Item:  # noqa: FBT001 - on the hot path
    """From the columns of lease.pick, which has counted already."""
    (item_id, queue, body, seq, enqueued, due, renewed, deliveries, attempt, errors, crashes, replays, last, _) = row
    return Item(
        item_id,
        queue,
        body,
        seq,
        State.LEASED,
        enqueued,
        due,
        renewed,
        deliveries,
        attempt,
        errors,
        crashes,
        replays,
        last != 0,
        alone,
        worker,
        now,
        until,
    )


def tombstone_of(row: Row) -> Tombstone:
    item_id, queue, state, digest, at, actor, reason = row
    return Tombstone(item_id, queue, STATES[state], digest, at, actor, reason)


def short(error: str) -> str:
    """The class of an error without its module, as core.select compares it."""
    return error.rpartition(".")[2]
