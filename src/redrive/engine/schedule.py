"""Fires recurring work: every tick of every schedule becomes one item, exactly once, whoever fires it.

Every worker has a scheduler and the store elects one of them; being elected only saves work. What makes a tick happen
once is its id. The leader claims a stretch of time before it fires the ticks in it, by comparing and setting one
document: one that was asleep, and came back after somebody else took over, is refused there. One that died after the
claim leaves it to the next, who fires the same ticks again, under the same ids.

Idle schedules cost one small read a second, however many they are; no schedules at all, one every five seconds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from redrive import events as ev
from redrive.core import codec
from redrive.core.item import Instant, Millis, NewItem
from redrive.core.schedule import (
    CHANGES,
    CLOCK,
    KIND,
    PROGRESS,
    Kept,
    Plan,
    Progress,
    Schedule,
    next_tick,
    plan,
    prepare,
    tick_item,
    unprepared,
)
from redrive.core.verbs import Document, DocumentWrite
from redrive.engine.schedule_payloads import shown
from redrive.engine.store_retry import StoreRetry
from redrive.errors import BadSchedule, Conflict, RedriveError, StoreCorrupt, StoreError
from redrive.stores.aside import aside
from redrive.stores.base import Store
from redrive.stores.clock import Clock

T = TypeVar("T")

NAME = "scheduler"
TTL: Millis = 15_000
"""For so long the others leave it to the leader; far less than what makes a tick a missed one."""
RENEW: Millis = 5_000
POLL: Millis = 1_000
IDLE: Millis = 5_000
READ_CLOCK: Millis = 10_000
AT_ONCE = 500
BREATH = 100
"""So many schedules are looked at before others get a turn of the loop."""


async def ready(schedules: Iterable[Schedule]) -> None:
    """Have what cron texts and time zones need read beside the loop."""
    zones = unprepared(schedules)
    if zones:
        await aside(lambda: prepare(zones))


async def _with_breaths(many: Iterable[T]) -> AsyncIterator[T]:
    """Others get a turn of the loop now and then."""
    for number, one in enumerate(many):
        if number % BREATH == BREATH - 1:
            await asyncio.sleep(0)
        yield one


class Scheduler:
    def __init__(self, store: Store, owner: str, *, events: ev.Events, clock: Clock, release: str = "") -> None:
        self._store = store
        self._owner = owner
        self._release = release
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("scheduler", events, clock)
        self._time = _StoreTime(store, clock)
        self._leads_until: Millis | None = None
        self._book: _Book | None = None

    async def run(self) -> None:
        while True:
            await self._clock.sleep(await self._retry(self.turn))

    async def turn(self) -> Millis:
        """Fire what is due; says how long there is nothing to do. May be repeated after any failure."""
        changes = await self._store.document(CLOCK, CHANGES)
        if changes is None:
            return IDLE
        if not await self._leads():
            return RENEW
        if self._book is None:
            self._book = await self._take_over()
        if self._book.version != changes.version:
            await self._book.load(changes.version)
        now = await self._time.now()
        try:
            await self._book.fire(now)
        except Conflict:
            # Somebody else led meanwhile: what we hold in memory is the past. Asked at once whether it is still so.
            self._leads_until = self._book = None
            return 1
        due = self._book.next_due
        return POLL if due is None else max(1, min(POLL, due - await self._time.now()))

    async def _leads(self) -> bool:
        asked = self._clock.monotonic()
        if self._leads_until is not None and self._leads_until - asked > TTL - RENEW:
            return True
        leads = await self._store.elect(NAME, self._owner, TTL)
        self._leads_until = asked + TTL if leads else None
        self._book = self._book if leads else None
        return leads

    async def _take_over(self) -> _Book:
        await self._time.read()
        document = await self._store.document(CLOCK, PROGRESS)
        return _Book(self._store, document, self._events, self._release)


class _StoreTime:
    """The store's clock, read every few seconds and counted on in between; late by as much as an answer takes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._read_at: Millis | None = None
        self._offset: Millis = 0

    async def now(self) -> Instant:
        monotonic = self._clock.monotonic()
        if self._read_at is None or monotonic - self._read_at >= READ_CLOCK:
            await self.read()
        return self._clock.monotonic() + self._offset

    async def read(self) -> None:
        at = (await self._store.tally(members=False)).at
        self._read_at = self._clock.monotonic()
        self._offset = at - self._read_at


class _Refused(NamedTuple):
    """Why ticks could not be put, and up to which one they could."""

    why: str
    upto: Instant | None


class _Entry:
    """A schedule in the leader's memory. `dealt`: ticks up to then are dealt with. `due`: when to look at it again."""

    __slots__ = ("dealt", "due", "kept", "owes", "version")

    def __init__(self, kept: Kept, version: int, dealt: Instant) -> None:
        self.kept = kept
        self.version = version
        self.dealt = max(dealt, kept.since)
        self.due = None if kept.paused_at is not None else next_tick(kept.schedule, self.dealt)
        self.owes = False


class _Book:
    """What a leader knows: the schedules by name, the next of them first, and how far it has come."""

    def __init__(self, store: Store, progress: Document | None, events: ev.Events, release: str = "") -> None:
        self._store = store
        self._release = release
        self._events = events
        self._written = 0 if progress is None else progress.version
        self._progress = Progress() if progress is None else codec.decode(progress.body, Progress)
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[Instant, str]] = []
        self._owing = 0
        self.version: int | None = None

    @property
    def next_due(self) -> Instant | None:
        return self._heap[0][0] if self._heap else None

    # -- knowing the schedules -------------------------------------------------------------------------------------

    async def load(self, version: int) -> None:
        """What was written since `version` was read is seen too, or the version moves once more."""
        known, entries = self._entries, dict[str, _Entry]()
        new: list[tuple[Document, Kept]] = []
        async for document in _with_breaths(await self._store.documents(KIND)):
            old = known.get(document.key)
            if old is not None and old.version == document.version:
                entries[document.key] = old
            else:
                new += self._read(document)
        await ready([kept.schedule for _, kept in new])
        async for document, kept in _with_breaths(new):
            entry = self._entry(document, kept, known.get(document.key))
            if entry is not None:
                entries[document.key] = entry
        self._entries = entries
        self._owing = sum(entry.owes for entry in entries.values())
        self._heap = [(entry.due, name) for name, entry in entries.items() if entry.due is not None]
        heapq.heapify(self._heap)
        self.version = version

    def _read(self, document: Document) -> list[tuple[Document, Kept]]:
        try:
            kept = codec.decode(document.body, Kept)
            return [(document, replace(kept, schedule=shown(kept.schedule, self._store.keyring())))]
        except StoreCorrupt as error:
            self._left_out(document, error)
            return []

    def _entry(self, document: Document, kept: Kept, old: _Entry | None) -> _Entry | None:
        """One that is changed goes on from where it was. A new leader goes on from where all ticks were dealt with:
        what was claimed after that comes under the same ids again.
        """
        try:
            return _Entry(kept, document.version, self._progress.to if old is None else old.dealt)
        except BadSchedule as error:
            self._left_out(document, error)
            return None

    def _left_out(self, document: Document, error: RedriveError) -> None:
        """One that cannot be read here must not stop the others."""
        self._events.emit(ev.StoreFailed("scheduler", f"schedule {document.key!r}: {error}"))

    # -- firing ----------------------------------------------------------------------------------------------------

    async def fire(self, now: Instant) -> None:
        """Raises Conflict if somebody else has claimed since we did."""
        due = self._due(now)
        if not due:
            return
        claimed = self._progress.claimed
        plans = []
        async for entry in _with_breaths(due):
            plans.append(plan(entry.kept.schedule, entry.dealt, claimed, now))  # noqa: PERF401 - it breathes
        await self._claim(now)
        refused = await self._put_all(due, plans)
        async for entry, what in _with_breaths(zip(due, plans, strict=True)):
            self._dealt(entry, now, what, refused.get(entry.kept.schedule.name))
        self._move_on(due, now)

    def _due(self, now: Instant) -> list[_Entry]:
        """They stay in the heap until they are dealt with: whatever fails on the way, they are still due then."""
        names = []
        while self._heap and self._heap[0][0] <= now:
            names.append(heapq.heappop(self._heap)[1])
        due = [self._entries[name] for name in names]
        self._push(due)
        return due

    def _push(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            if entry.due is not None:
                heapq.heappush(self._heap, (entry.due, entry.kept.schedule.name))

    def _move_on(self, due: Sequence[_Entry], now: Instant) -> None:
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)
        self._push(due)
        # Written with the next claim: until then whoever takes over repeats this round, and changes nothing by it.
        owed = [entry.dealt for entry in self._entries.values() if entry.owes] if self._owing else []
        self._progress = Progress(min(owed, default=now), self._progress.claimed)

    async def _claim(self, now: Instant) -> None:
        progress = Progress(self._progress.to, max(now, self._progress.claimed))
        write = DocumentWrite(CLOCK, PROGRESS, codec.encode(progress), self._written)
        (document,) = await self._store.write_documents([write])
        self._written, self._progress = document.version, progress

    async def _put_all(self, due: Sequence[_Entry], plans: Sequence[Plan]) -> dict[str, _Refused]:
        """Names of schedules whose items were refused, and why. Together if possible: all or none of a put is taken."""
        refused: dict[str, _Refused] = {}
        batch: list[tuple[str, list[NewItem]]] = []
        size = 0
        for entry, what in zip(due, plans, strict=True):
            schedule = entry.kept.schedule
            if schedule.sealed and what.fire:
                # Owed until a process with the key leads.
                refused[schedule.name] = _Refused(f"its payload is encrypted with key {schedule.sealed!r}", None)
                continue
            batch.append((schedule.name, [tick_item(schedule, tick, self._release) for tick in what.fire]))
            size += len(what.fire)
            if size >= AT_ONCE:
                refused |= await self._put(batch)
                batch, size = [], 0
        return refused | await self._put(batch)

    async def _put(self, batch: Sequence[tuple[str, list[NewItem]]]) -> dict[str, _Refused]:
        items = [item for _, some in batch for item in some]
        if not items:
            return {}
        why = await self._refusal(items)
        if why is None:
            return {}
        if len(batch) > 1:
            refused: dict[str, _Refused] = {}
            for one in batch:
                refused |= await self._put([one])
            return refused
        name = batch[0][0]
        # As many as there is room for: more of them may be owed than the queue will ever take at once.
        upto = None
        for item in items if len(items) > 1 else ():
            why = await self._refusal([item])
            if why is not None:
                break
            upto = item.at
        return {} if why is None else {name: _Refused(why, upto)}

    async def _refusal(self, items: Sequence[NewItem]) -> str | None:
        """Why none of them was put, or None: they are."""
        try:
            result = await self._store.put(items)
        except StoreError:
            raise
        except RedriveError as error:
            return error.message
        for twin in result.duplicates:
            name = twin.id.rpartition("@")[0]
            self._events.emit(ev.TicksMissed(name, 1, 0, f"its dedupe key is held by {twin.of}"))
        return None

    def _dealt(self, entry: _Entry, now: Instant, what: Plan, refused: _Refused | None) -> None:
        schedule = entry.kept.schedule
        if refused is not None:
            # A full queue takes them later; those that are too late by then go by the catch-up rule.
            entry.due = now + POLL
            entry.dealt = entry.dealt if refused.upto is None else max(entry.dealt, refused.upto)
            if not entry.owes:
                self._owing += 1
                entry.owes = True
                left = sum(refused.upto is None or tick > refused.upto for tick in what.fire)
                self._events.emit(ev.TicksMissed(schedule.name, left, 0, f"refused for now: {refused.why}"))
            return
        self._owing -= entry.owes
        entry.dealt, entry.owes = now, False
        entry.due = next_tick(schedule, now)
        if what.missed:
            reason = f"nobody could fire them in time; its rule is {schedule.catch_up!r}"
            self._events.emit(ev.TicksMissed(schedule.name, what.missed, what.late, reason))
