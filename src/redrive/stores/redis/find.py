"""Looking on Redis: `get`, `find`, `ids`, `tally`, `causes`, tombstones. How items are found stands in search.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from redrive.core import codec, select
from redrive.core.families import family_of, is_family
from redrive.core.item import BLOCKERS, Attempt, Failure, History, Instant, Item
from redrive.core.meters import Rate, gives_again
from redrive.core.select import Selection
from redrive.core.verbs import CauseTally, IdPage, LetterChange, Page, QueueTally, RouteTally, Tally, Tombstone
from redrive.errors import NotFound, StoreCorrupt
from redrive.stores import residue
from redrive.stores.redis.limits import declared_of
from redrive.stores.redis.rows import ROW, deeds_of, facts_of, item_of, revision_of, shown, tombstone_of
from redrive.stores.redis.search import as_bytes, by_ids, judged, search
from redrive.stores.redis.session import Session

BODIES = 100
"""Items whose payloads come in one reply: they may be large."""


async def get(session: Session, item_id: str) -> History:
    *row, attempts, deeds, pruned, blockers, revisions = await session.read("get", [as_bytes(item_id), BLOCKERS])
    if row[0] is None:
        raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
    history = History(
        shown(item_of([item_id.encode(), *row]), row[4]),
        tuple([codec.decode(attempt, Attempt) for attempt in attempts]),
        facts_of(item_id, row[0]).omitted,
        deeds_of(deeds),
        _blocked_by(blockers),
        tuple([revision_of(each) for each in revisions]),
    )
    return await session.bodies.whole_history(history)


def _blocked_by(blockers: Sequence[Any]) -> tuple[str, ...]:
    """Longest enqueued first; what was pruned is older than anything."""
    pairs = {(number, item_id.decode()) for item_id, number in zip(blockers[0::2], blockers[1::2], strict=True)}
    return tuple([item_id for _, item_id in sorted(pairs)[:BLOCKERS]])


async def find(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> Page:
    return await residue.page(_looks(session, oldest=oldest), selection, limit, cursor)


async def ids(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> IdPage:
    return await residue.ids(_looks(session, oldest=oldest), selection, limit, cursor)


def _looks(session: Session, *, oldest: bool) -> residue.Looks:
    find, ids = partial(_find, session, oldest=oldest), partial(_ids, session, oldest=oldest)
    return residue.Looks(find, ids, partial(_now, session), oldest)


async def _find(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> Page:
    found = await search(session, selection, limit, cursor, whole=True, oldest=oldest)
    read = await _read_whole(session, selection, [each.item.id for each in found.candidates if not each.whole])
    items = []
    for each in found.candidates:
        item = shown(each.item, each.parked) if each.whole else read.get(each.item.id)
        if item is not None:
            items.append(item)
    return Page(await session.bodies.whole(tuple(items)), found.next, found.scanned)


async def _read_whole(session: Session, selection: Selection, ids: Sequence[str]) -> dict[str, Item]:
    """By id. They were judged a moment ago, and what has been moved since is not what was asked for."""
    items: dict[str, Item] = {}
    for first in range(0, len(ids), BODIES):
        now, *fields = await session.read("rows", ["bfr", *ids[first : first + BODIES]])
        for row in [fields[at : at + ROW] for at in range(0, len(fields), ROW)]:
            if row[1] is not None:
                item, parked = item_of(row), row[-1]
                if select.matches(selection, judged(item, parked), now):
                    items[item.id] = shown(item, parked)
    return items


async def _ids(session: Session, selection: Selection, limit: int, cursor: str | None, *, oldest: bool) -> IdPage:
    found = await search(session, selection, limit, cursor, whole=False, oldest=oldest)
    return IdPage(tuple([each.item.id for each in found.candidates]), found.next)


async def changes(session: Session, after: int, limit: int) -> tuple[LetterChange, ...]:
    """In several replies where many are asked for. One that changes between them comes once, with its last number."""
    found: dict[str, LetterChange] = {}
    while (room := min(BODIES, limit - len(found))) > 0:
        fields = await session.read("changes", [after, room])
        for at in range(0, len(fields), 1 + ROW):
            after, row = int(fields[at]), fields[at + 1 : at + 1 + ROW]
            item = None if row[1] is None else shown(item_of(row), row[-1])
            item_id = row[0].decode()
            found.pop(item_id, None)
            found[item_id] = LetterChange(after, item_id, item)
        if len(fields) < room * (1 + ROW):
            break
    return await session.bodies.whole_changes([*found.values()])


async def _now(session: Session) -> Instant:
    return (await by_ids(session, (), needs="")).now


async def tombstone(session: Session, item_id: str) -> Tombstone | None:
    kept = await session.read("tombstone", [as_bytes(item_id)])
    return None if kept is None else tombstone_of(item_id, kept)


async def tally(session: Session, *, members: bool | Collection[str] = True) -> Tally:
    named = [] if isinstance(members, bool) else [as_bytes(name) for name in members]
    now, letters, opened, rooms, *fields = await session.read("tally", [b"1" if members is True else b"0", *named])
    found = [fields[at : at + 13] for at in range(0, len(fields), 13)]
    rates = {row[0]: declared_of(row[1]).settings().rate for row in found if row[0].endswith(b":*")}
    rows = sorted([_queue(row, now, rates) for row in found], key=lambda row: row.queue)
    families = tuple([row for row in rows if is_family(row.queue)])
    queues = tuple([row for row in rows if members is not True or not is_family(row.queue)])
    return Tally(now, queues, _routes(letters, opened, rooms), families)


def _routes(letters: int, opened: Sequence[bytes], rooms: Sequence[bytes]) -> tuple[RouteTally, ...]:
    """Letters without a route are in no index of theirs: they are the others."""
    count = {route.decode(): int(open_) for route, open_ in zip(opened[0::2], opened[1::2], strict=True)}
    room = {route.decode(): int(most) for route, most in zip(rooms[0::2], rooms[1::2], strict=True)}
    without = letters - sum(count.values())
    if without:
        count[""] = without
    return tuple([RouteTally(route, count.get(route, 0), room.get(route)) for route in sorted(count | room)])


def _queue(row: Sequence[Any], now: Instant, rates: Mapping[bytes, Rate | None]) -> QueueTally:
    """`rates`: of families, for members that have none of their own."""
    name, kept, ready, leased, done, opened, archived, trash, cancelled, held, parked, oldest_due, meter = row
    counts = (ready, leased, done, opened, archived, trash, cancelled)
    declared = declared_of(kept)
    paused = (declared.paused, declared.by, declared.reason)
    settings = declared.settings()
    again = gives_again(settings.rate or rates.get(as_bytes(family_of(name.decode()))), meter, now)
    return QueueTally(name.decode(), *counts, oldest_due, *paused, held, parked, settings, again)


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
