"""Finding items: candidates come from an index in chunks, and `core.select.matches` judges each.

A script holds up the whole server while it runs, so no chunk is large. An item that is moved between two chunks is
found where it was or where it is, as in any listing of what changes meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import select
from redrive.core.item import Instant, Item
from redrive.core.select import Selection
from redrive.errors import StoreCorrupt
from redrive.stores.cursor import Place, order_of
from redrive.stores.cursor import read as read_cursor
from redrive.stores.cursor import write as write_cursor
from redrive.stores.redis.plan import Plan, Window, died_within, plan, plan_of_oldest
from redrive.stores.redis.rows import PARKED, ROW, STAMP, bare_item, item_of
from redrive.stores.redis.session import Session

CHUNK = 1_000
"""Candidates read by one script: a millisecond or two of the server's time."""
FEW = 20_000
"""Up to so many, an index that is in another order is read as a whole."""
_FARTHEST = 10**18
"""Further than any instant, and still a number to the server."""


class Candidate(Struct, frozen=True, gc=False):
    """`kept` is the record it was judged by. A change is made only where that is still the record.

    `whole`: with its payload and all else; others have what they are judged by.
    """

    item: Item
    kept: bytes
    parked: bool = False
    whole: bool = False


class Chunk(NamedTuple):
    now: Instant
    candidates: list[Candidate]


class Found(NamedTuple):
    candidates: list[Candidate]
    next: str | None
    scanned: int


async def search(
    session: Session, selection: Selection, limit: int, cursor: str | None, *, whole: bool, oldest: bool = False
) -> Found:
    """A page of what matches, the last first or the first; with payloads as far as they come by the way."""
    way = plan(selection)
    order = order_of(letters=way.letters, oldest=oldest)
    after = read_cursor(order, cursor)
    window = died_within(selection) if way.letters else Window()
    if window.has_bound(oldest=oldest):
        after = await _past(session, window, after, oldest=oldest)
    found: list[Candidate] = []
    scanned = 0
    # One more than is wanted tells whether there is another page.
    async for now, candidates in _in_order(session, selection, way, after, limit + 1, whole=whole, oldest=oldest):
        scanned += len(candidates)
        edge = window.begin(now) if oldest else window.end(now)
        for candidate in candidates:
            if _is_past(candidate.item, edge, oldest=oldest):
                return Found(found, None, scanned)
            if not select.matches(selection, judged(candidate.item, candidate.parked), now):
                continue
            if len(found) == limit:
                return Found(found, write_cursor(order, _place(found[-1].item, way)), scanned)
            found.append(candidate)
    return Found(found, None, scanned)


async def _past(session: Session, window: Window, after: Place | None, *, oldest: bool) -> Place | None:
    """Where to begin, past all letters that died too lately, or too early: their indexes are in the order of death."""
    now = (await by_ids(session, (), needs="")).now
    instant = window.end(now) if oldest else window.begin(now)
    if instant is None:
        return after
    # No number is below 1: nothing that died at that instant is passed by.
    begin = (max(0, min(instant if oldest else instant + 1, _FARTHEST)), 0)
    if after is None:
        return begin
    return max(begin, after) if oldest else min(begin, after)


def _is_past(item: Item, edge: Instant | None, *, oldest: bool) -> bool:
    """From here on all are: what is asked for has come to its end."""
    if edge is None or item.letter is None:
        return False
    return item.letter.died_at > edge if oldest else item.letter.died_at < edge


class Oldest(NamedTuple):
    """The first that match, in the order of enqueueing; `matching` counts all of them, if asked to."""

    candidates: list[Candidate]
    matching: int


async def oldest(session: Session, selection: Selection, limit: int, *, count_all: bool = False) -> Oldest:
    found: list[Candidate] = []
    matching = 0
    way = plan_of_oldest(selection)
    async for now, candidates in _in_order(session, selection, way, None, limit, whole=False, oldest=True):
        for candidate in candidates:
            if select.matches(selection, judged(candidate.item, candidate.parked), now):
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


async def _in_order(
    session: Session, selection: Selection, way: Plan, after: Place | None, want: int, *, whole: bool, oldest: bool
) -> AsyncIterator[Chunk]:
    ids = await _named(session, selection, way)
    if ids is None:
        end = "first" if oldest else "last"
        async for chunk in _scanned(session, way, after, want, end=end, whole=whole):
            yield chunk
        return
    now, candidates = await by_ids(session, ids, needs=way.needs)
    if way.letters:
        candidates = [candidate for candidate in candidates if candidate.item.letter is not None]
    placed = [(_place(candidate.item, way), candidate) for candidate in candidates]
    left = [one for one in placed if after is None or (one[0] > after if oldest else one[0] < after)]
    left.sort(key=_by_place, reverse=not oldest)
    yield Chunk(now, [candidate for _, candidate in left])


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
        found += _candidates(fields, whole=False)
    return Chunk(now, found)


async def _scanned(
    session: Session, way: Plan, after: Place | None, want: int, end: str, *, whole: bool
) -> AsyncIterator[Chunk]:
    """Of a long list the next chunk is read while this one is judged. The first has as many as are wanted: whole, it is
    all that there is to read where the index has just what matches.
    """
    score, member = (b"", b"") if after is None else (b"%d" % after[0], b"%016d" % after[1])
    groups = [as_bytes(text) for group in way.groups for text in (str(len(group)), *group)]
    # Letters have no result, and are not parked.
    needs = way.needs if not whole else "bf" if way.letters else "bfrp"
    many, is_first = want, True
    ahead: asyncio.Task[Any] | None = None
    try:
        while True:
            reply = await (_read(session, way, groups, (many, end, score, member), needs) if ahead is None else ahead)
            now, all_read, score, member, *fields = reply
            many *= 2
            # Behind the first the next is wanted for certain only if that had too few.
            is_wanted = not is_first or len(fields) < want * ROW
            ahead, is_first = None, False
            if is_wanted and not all_read:
                ahead = asyncio.create_task(_read(session, way, groups, (many, end, score, member), way.needs))
            yield Chunk(now, _candidates(fields, whole=whole))
            if all_read:
                return
            whole, needs = False, way.needs
    finally:
        if ahead is not None:
            # Nobody wants it any more, nor what it may have to complain about.
            ahead.add_done_callback(lambda over: over.cancelled() or over.exception())
            ahead.cancel()


async def _read(
    session: Session, way: Plan, groups: list[bytes], place: tuple[int, str, bytes, bytes], needs: str
) -> Any:
    many, end, score, member = place
    before_id = STAMP if way.letters else 0
    return await session.read("find", [min(many, CHUNK), end, score, member, before_id, needs, *groups])


def _candidates(fields: Sequence[Any], *, whole: bool) -> list[Candidate]:
    """What is damaged cannot be judged, and must not keep the others from being found: `check` tells of it."""
    made = []
    for at in range(0, len(fields), ROW):
        item_id, kept, body, failure, _, parked = row = fields[at : at + ROW]
        if kept is None:
            continue
        has_all = whole and body != 0
        try:
            item = item_of(row) if has_all else bare_item(item_id.decode(), kept, failure)
        except (StoreCorrupt, UnicodeDecodeError):
            continue
        made.append(Candidate(item, kept, bool(parked), has_all))
    return made


def judged(item: Item, parked: object) -> Item:
    """With all that it waits for: who is parked is shown as that alone, but may wait for more than its turn."""
    return replace(item, hold=f"{PARKED}:{item.hold}") if parked else item


def as_bytes(text: str) -> bytes:
    """For looking: half a character is in no name, and so finds nothing."""
    return text.encode(errors="surrogatepass")
