"""Looking on Redis: `get`, `find`, `ids`, `tally`, `causes`, tombstones. How items are found stands in search.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from redrive.core import codec, select
from redrive.core.item import Attempt, Failure, History, Item
from redrive.core.select import Selection
from redrive.core.verbs import CauseTally, IdPage, Page, QueueTally, Tally, Tombstone
from redrive.errors import NotFound, StoreCorrupt
from redrive.stores import bodies
from redrive.stores.redis.rows import deeds_of, facts_of, item_of, tombstone_of
from redrive.stores.redis.search import as_bytes, search
from redrive.stores.redis.session import Session

BODIES = 100
"""Items whose payloads come in one reply: they may be large."""

_queue_settings = msgspec.msgpack.Decoder(tuple[bool, str, str])


async def get(session: Session, item_id: str) -> History:
    *row, attempts, deeds, pruned = await session.read("get", [as_bytes(item_id)])
    if row[0] is None:
        raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
    (item,) = await bodies.whole((item_of([item_id.encode(), *row]),))
    return History(
        item,
        tuple([codec.decode(attempt, Attempt) for attempt in attempts]),
        facts_of(item_id, row[0]).omitted,
        deeds_of(deeds),
    )


async def find(session: Session, selection: Selection, limit: int, cursor: str | None) -> Page:
    found = await search(session, selection, limit, cursor)
    items: list[Item] = []
    for first in range(0, len(found.items), BODIES):
        ids = [item.id.encode() for item in found.items[first : first + BODIES]]
        now, *fields = await session.read("rows", ["bfr", *ids])
        rows = [fields[at : at + 5] for at in range(0, len(fields), 5)]
        read = [item_of(row) for row in rows if row[1] is not None]
        # They were judged a moment ago, and what has been moved since is not what was asked for.
        items += [item for item in read if select.matches(selection, item, now)]
    return Page(await bodies.whole(tuple(items)), found.next, found.scanned)


async def ids(session: Session, selection: Selection, limit: int, cursor: str | None) -> IdPage:
    found = await search(session, selection, limit, cursor)
    return IdPage(tuple([item.id for item in found.items]), found.next)


async def tombstone(session: Session, item_id: str) -> Tombstone | None:
    kept = await session.read("tombstone", [as_bytes(item_id)])
    return None if kept is None else tombstone_of(item_id, kept)


async def tally(session: Session) -> Tally:
    now, *fields = await session.read("tally", [])
    queues = [_queue(fields[at : at + 10]) for at in range(0, len(fields), 10)]
    return Tally(now, tuple(sorted(queues, key=lambda tally: tally.queue)))


def _queue(row: Sequence[Any]) -> QueueTally:
    name, settings, ready, leased, done, opened, archived, trash, cancelled, oldest_due = row
    counts = (ready, leased, done, opened, archived, trash, cancelled)
    return QueueTally(name.decode(), *counts, oldest_due, *_queue_settings.decode(settings))


async def causes(session: Session, queue: str | None, limit: int) -> tuple[CauseTally, ...]:
    if queue == "":
        return ()
    rows = await session.read("causes", [max(0, limit), as_bytes(queue or "")])
    return tuple([_cause(row) for row in rows])


def _cause(row: Sequence[Any]) -> CauseTally:
    name, count, first_at, last_at, kept, evidence = row
    cause, _, queue = name.decode().rpartition("\0")
    error, text = _example(kept, evidence)
    return CauseTally(cause, queue, count, error, text, first_at, last_at)


def _example(kept: bytes | None, evidence: bytes | None) -> tuple[str, str]:
    """Of a letter whose evidence is damaged, what the record knows."""
    try:
        failure = codec.decode(evidence or b"", Failure)
    except StoreCorrupt:
        letter = facts_of("", kept or b"").letter
        return ("", "") if isinstance(letter, bool) else (letter.error_short, "")
    return failure.type, failure.text
