"""`lease` on PostgreSQL: the request as arrays, and what comes back as items."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.families import is_family
from redrive.core.item import Instant, Item, Terms
from redrive.core.lanes import PRIORITIES, level_of
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Want
from redrive.stores.bodies import Judged
from redrive.stores.packing import Packed, fault
from redrive.stores.postgres.arrays import Texts, bigints, integers, texts
from redrive.stores.postgres.settings import declare_family

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redrive.stores.postgres.session import Session
    from redrive.stores.postgres.wire import Row

GIVEN, SUSPECT_WAITS, NOT_APPLIED, WOKEN, CANCELLED, KEPT, MORE = 0, 1, 2, 3, 4, 5, 6
"""What a row of lease.sql and settle.sql says, by its first column."""

_MOST = 2**31 - 1
_MOST_CRASHES = _MOST // 6
"""Levels count them by six."""
MOST_ORDERED = 16_384
"""What was leased and never settled here must not be remembered for ever."""
_NO_FLOOR = (-1, 0)


class Answer(NamedTuple):
    """Of `settle` and `lease`: what was given, and the places that were not applied with the current delivery.

    `woken`: queues in which something became free. `cancelled` and `kept`: places of what ended otherwise than decided.
    `more`: as in Leases.
    """

    judged: list[Judged]
    suspect_waits: bool
    refused: dict[int, int | None]
    woken: set[str]
    cancelled: set[int]
    kept: set[int]
    more: bool = False


async def lease(session: Session, request: LeaseRequest) -> Answer:
    if session.memo.knows_nothing_was_given(request):
        return Answer([], False, {}, set(), set(), set())
    for want in request.wants:
        if is_family(want.queue):
            await declare_family(session, want.queue)
    look = session.floors.look(request)
    rows = await session.call(session.sql("lease", "call"), (session.pinned(), *wanted(request, look)))
    answer = read(rows)
    given(session, request, look, answer)
    return answer


def given(session: Session, request: LeaseRequest, look: Look, answer: Answer) -> None:
    """What this process learns from an answer: numbers, nonces, floors."""
    memo = session.memo
    if answer.judged:
        memo.gave(request)
        memo.remember(item for item, _ in answer.judged)
        if len(session.ordered) > MOST_ORDERED:
            session.ordered.clear()
        session.ordered.update(
            [item.id for item, _ in answer.judged if item.terms is not None and item.terms.order_key]
        )
    else:
        memo.gave_nothing(request)
    if not request.item:
        # One that was asked for by its id says nothing of those due before it.
        session.floors.learn(request, look, [item for item, _ in answer.judged])


def wanted(request: LeaseRequest, look: Look) -> tuple[Any, ...]:
    """As lease.sql takes it."""
    wants = request.wants
    return (
        request.worker,
        f"{request.lane}:{request.nonce}",
        request.holding,
        texts([want.queue for want in wants]),
        integers([max(0, min(want.limit, _MOST)) for want in wants]),
        bigints([want.ttl for want in wants]),
        integers([min(want.max_crashes - 1, _MOST_CRASHES) for want in wants]),
        bigints([due for due, _ in look.floors]),
        bigints([seq for _, seq in look.floors]),
        integers([-1 if want.retries is None else max(0, min(want.retries, _MOST)) for want in wants]),
        bigints([want.turn for want in wants]),
        integers([-1 if want.share is None else want.share for want in wants]),
        request.item,
        kind_lists([want.kinds for want in wants]),
    )


def kind_lists(kinds: Sequence[tuple[str, ...] | None]) -> Texts | None:
    """Each as a JSON array, "" for all; None where all are for all."""
    if kinds.count(None) == len(kinds):
        return None
    return texts(["" if each is None else codec.encode(each).decode() for each in kinds])


def read(rows: Iterable[Row]) -> Answer:
    judged: list[Judged] = []
    refused: dict[int, int | None] = {}
    noted: dict[int, set[Any]] = {SUSPECT_WAITS: set(), WOKEN: set(), CANCELLED: set(), KEPT: set(), MORE: set()}
    for row in rows:
        note = row[0]
        if note == GIVEN:
            judged.append(_judged(row))
        elif note == NOT_APPLIED:
            refused[row[1]] = row[10]
        else:
            noted[note].add(row[3] if note == WOKEN else row[1])
    suspects, more = bool(noted[SUSPECT_WAITS]), bool(noted[MORE])
    return Answer(judged, suspects, refused, noted[WOKEN], noted[CANCELLED], noted[KEPT], more)


_LABELLED = b'{"tags":'


class _Labels(Struct):
    tags: tuple[str, ...]


def _labelled(item: Item, terms: bytes) -> Item:
    """One of the few that have tags, which come before its terms."""
    tags = codec.decode(terms, _Labels).tags
    return replace(item, tags=tags, terms=None if item.terms == Terms() else item.terms)


def _judged(row: Row) -> Judged:
    (_, seq, item_id, queue, body, crc, packing, put_at, due, renewed, deliveries, attempt) = row[:12]
    (
        errors,
        crashes,
        replays,
        last_chance,
        alone,
        worker,
        leased_at,
        until,
        priority,
        terms,
        gap,
        cancel,
        kind,
        release,
    ) = row[12:]
    item = Item(
        item_id,
        queue,
        Packed(body, packing) if packing else body,
        seq,
        State.LEASED,
        put_at,
        due,
        renewed,
        deliveries,
        attempt,
        errors,
        crashes,
        replays,
        last_chance,
        alone != 0,
        worker,
        leased_at,
        until,
        priority=PRIORITIES[priority],
        gap=gap or "",
        cancel=cancel or "",
        terms=None if terms is None else codec.decode(terms, Terms),
        kind=kind,
        release=release,
    )
    if terms is not None and terms.startswith(_LABELLED):
        item = _labelled(item, terms)
    # Nearly all are small and sound; whatever else there is to say, `fault` says.
    if packing == 0 and zlib.crc32(body) == crc:
        return item, None
    return item, fault(body, crc, packing)


Floor = tuple[int, int]
"""Due time and number of an item: what lies before it in its queue was taken, as far as this process has seen."""


class Look(NamedTuple):
    """How one request looks: from which floor on for each want, and when it began."""

    floors: list[Floor]
    began: float


class Floors:
    """Where to begin to look in each queue, so that a lease does not pass all that was taken before it.

    The index keeps an entry for whatever was leased until it is vacuumed, and nothing is vacuumed while anybody has an
    old snapshot. What was committed late, or given back by a clock set back, lies below the floor and waits until the
    floor is dropped: after a second, or as soon as nothing is found above it. Should looking without a floor take long,
    it is done more rarely, so that it never takes more than a small part of the time.
    """

    KEEP = 1.0
    SHARE = 20
    LONGEST = 60.0

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._floors: dict[str, tuple[tuple[str, ...] | None, Floor]] = {}
        self._until: dict[str, float] = {}

    def look(self, request: LeaseRequest) -> Look:
        now = self._now()
        return Look([self._floor(want, now) for want in request.wants], now)

    def drop(self, queues: Iterable[str]) -> None:
        """Something that had waited for others may be leased there, and lies where its due time puts it."""
        for queue in queues:
            self._floors.pop(queue, None)

    def _floor(self, want: Want, now: float) -> Floor:
        """Only where the same kinds were asked for: of others, nothing below it may have been taken."""
        kinds, floor = self._floors.get(want.queue, (None, _NO_FLOOR))
        return floor if kinds == want.kinds and now < self._until.get(want.queue, 0.0) else _NO_FLOOR

    def learn(self, request: LeaseRequest, look: Look, items: list[Item]) -> None:
        last = {item.queue: item for item in items if level_of(item) == 0 and not item.alone}
        took = self._now() - look.began
        for want, floor in zip(request.wants, look.floors, strict=True):
            item = last.get(want.queue)
            if item is None:
                self._floors.pop(want.queue, None)
                continue
            self._floors[want.queue] = (want.kinds, _above(item))
            if floor == _NO_FLOOR:
                self._until[want.queue] = look.began + min(max(self.KEEP, took * self.SHARE), self.LONGEST)


def _above(item: Item) -> Floor:
    """What became due in the very millisecond of the lease may be followed by more of the same, in any order."""
    leased_at: Instant = item.leased_at or 0
    return (item.due_at, item.seq) if item.due_at < leased_at else (item.due_at, 0)
