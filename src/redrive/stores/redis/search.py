"""Finding items: candidates come from an index in chunks, and `core.select.matches` judges each.

A script holds up the whole server while it runs, so no chunk is large. An item that is moved between two chunks is
found where it was or where it is, as in any listing of what changes meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from redrive.core import select
from redrive.core.item import Instant, Item
from redrive.core.select import Selection
from redrive.errors import StoreCorrupt
from redrive.stores.cursor import Place
from redrive.stores.cursor import read as read_cursor
from redrive.stores.cursor import write as write_cursor
from redrive.stores.redis.plan import Plan, Window, died_within, plan, plan_of_oldest
from redrive.stores.redis.rows import PARKED, STAMP, bare_item
from redrive.stores.redis.session import Session

CHUNK = 1_000
"""Candidates read by one script: a millisecond or two of the server's time."""
FEW = 20_000
"""Up to so many, an index that is in another order is read as a whole."""
_FARTHEST = 10**18
"""Further than any instant, and still a number to the server."""


class Candidate(NamedTuple):
    """`kept` is the record it was judged by. A change is made only where that is still the record."""

    item: Item
    kept: bytes


class Chunk(NamedTuple):
    now: Instant
    candidates: list[Candidate]


class Found(NamedTuple):
    items: list[Item]
    next: str | None
    scanned: int


async def search(session: Session, selection: Selection, limit: int, cursor: str | None) -> Found:
    """A page of what matches, the last first, without payloads."""
    way = plan(selection)
    after = read_cursor(way.order, cursor)
    window = died_within(selection) if way.letters else Window()
    if window.least is not None or window.last is not None:
        after = await _past(session, window, after)
    found: list[Item] = []
    scanned = 0
    # One more than is wanted tells whether there is another page.
    async for now, candidates in _last_first(session, selection, way, after, limit + 1):
        scanned += len(candidates)
        for item, _ in candidates:
            if _died_before(item, window.end(now)):
                return Found(found, None, scanned)
            if not select.matches(selection, item, now):
                continue
            if len(found) == limit:
                return Found(found, write_cursor(way.order, _place(found[-1], way)), scanned)
            found.append(item)
    return Found(found, None, scanned)


async def _past(session: Session, window: Window, after: Place | None) -> Place | None:
    """Where to begin, past all letters that died too lately: the indexes of letters are in the order of death."""
    latest = window.begin((await by_ids(session, (), needs="")).now)
    if latest is None:
        return after
    begin = (max(0, min(latest + 1, _FARTHEST)), 0)
    return begin if after is None else min(begin, after)


def _died_before(item: Item, instant: Instant | None) -> bool:
    """From here on all have: what is asked for has come to its end."""
    return instant is not None and item.letter is not None and item.letter.died_at < instant


class Oldest(NamedTuple):
    """The first that match, in the order of enqueueing; `matching` counts all of them, if asked to."""

    candidates: list[Candidate]
    matching: int


async def oldest(session: Session, selection: Selection, limit: int, *, count_all: bool = False) -> Oldest:
    found: list[Candidate] = []
    matching = 0
    async for now, candidates in _first_first(session, selection, limit):
        for candidate in candidates:
            if select.matches(selection, candidate.item, now):
                matching += 1
                if len(found) < limit:
                    found.append(candidate)
        if len(found) >= limit and not count_all:
            break
    return Oldest(found, matching)


def _place(item: Item, way: Plan) -> Place:
    if way.letters and item.letter is not None:
        return item.letter.died_at, item.seq
    return item.seq, item.seq


async def _last_first(
    session: Session, selection: Selection, way: Plan, after: Place | None, want: int
) -> AsyncIterator[Chunk]:
    ids = await _named(session, selection, way)
    if ids is None:
        async for chunk in _scanned(session, way, after, want, end="last"):
            yield chunk
        return
    now, candidates = await by_ids(session, ids, needs=way.needs)
    if way.letters:
        candidates = [candidate for candidate in candidates if candidate.item.letter is not None]
    placed = sorted([(_place(candidate.item, way), candidate) for candidate in candidates], key=_by_place, reverse=True)
    yield Chunk(now, [candidate for place, candidate in placed if after is None or place < after])


async def _first_first(session: Session, selection: Selection, want: int) -> AsyncIterator[Chunk]:
    way = plan_of_oldest(selection)
    ids = await _named(session, selection, way)
    if ids is None:
        async for chunk in _scanned(session, way, None, want, end="first"):
            yield chunk
        return
    now, candidates = await by_ids(session, ids, needs=way.needs)
    yield Chunk(now, sorted(candidates, key=lambda candidate: candidate.item.seq))


def _by_place(placed: tuple[Place, Candidate]) -> Place:
    return placed[0]


async def _named(session: Session, selection: Selection, way: Plan) -> Sequence[bytes] | None:
    """All ids that can match, in no order; None if they are too many to be read at once."""
    ids = select.ids_of(selection)
    if ids is not None:
        return [as_bytes(item_id) for item_id in ids]
    if not way.few:
        return None
    found: list[bytes] | None = await session.read(
        "members", [FEW, *(as_bytes(text) for pair in way.few for text in pair)]
    )
    return found


async def by_ids(session: Session, ids: Sequence[bytes], *, needs: str) -> Chunk:
    """Those that exist, each once, in the order given."""
    unique = list(dict.fromkeys(ids))
    now, found = 0, []
    for first in range(0, max(1, len(unique)), CHUNK):
        now, *fields = await session.read("rows", [needs, *unique[first : first + CHUNK]])
        rows = zip(fields[0::6], fields[1::6], fields[3::6], fields[5::6], strict=True)
        found += _candidates(rows)
    return Chunk(now, found)


async def _scanned(session: Session, way: Plan, after: Place | None, want: int, end: str) -> AsyncIterator[Chunk]:
    """Of a long list the next chunk is read while this one is judged."""
    score, member = (b"", b"") if after is None else (b"%d" % after[0], b"%016d" % after[1])
    groups = [as_bytes(text) for group in way.groups for text in (str(len(group)), *group)]
    many = want
    ahead: asyncio.Task[Any] | None = None
    try:
        while True:
            reply = await (_read(session, way, groups, (many, end, score, member)) if ahead is None else ahead)
            now, all_read, score, member, *fields = reply
            many *= 2
            ahead = None
            if want > CHUNK and not all_read:
                ahead = asyncio.create_task(_read(session, way, groups, (many, end, score, member)))
            rows = zip(fields[0::4], fields[1::4], fields[2::4], fields[3::4], strict=True)
            yield Chunk(now, _candidates(rows))
            if all_read:
                return
    finally:
        if ahead is not None:
            # Nobody wants it any more, nor what it may have to complain about.
            ahead.add_done_callback(lambda over: over.cancelled() or over.exception())
            ahead.cancel()


async def _read(session: Session, way: Plan, groups: list[bytes], place: tuple[int, str, bytes, bytes]) -> Any:
    many, end, score, member = place
    before_id = STAMP if way.letters else 0
    return await session.read("find", [min(many, CHUNK), end, score, member, before_id, way.needs, *groups])


def _candidates(rows: Iterable[tuple[Any, Any, Any, Any]]) -> list[Candidate]:
    """What is damaged cannot be judged, and must not keep the others from being found: `check` tells of it."""
    made = []
    for item_id, kept, failure, parked in rows:
        if kept is None:
            continue
        try:
            made.append(Candidate(judged(bare_item(item_id.decode(), kept, failure), parked), kept))
        except (StoreCorrupt, UnicodeDecodeError):
            continue
    return made


def judged(item: Item, parked: object) -> Item:
    """With all that it waits for: who is parked is shown as that alone, but may wait for more than its turn."""
    return replace(item, hold=f"{PARKED}:{item.hold}") if parked else item


def as_bytes(text: str) -> bytes:
    """For looking: half a character is in no name, and so finds nothing."""
    return text.encode(errors="surrogatepass")
