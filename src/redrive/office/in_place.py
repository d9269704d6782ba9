"""Work on letters in place: a letter is leased, worked on and settled, and stays a letter until that is done.

So a process that dies in the middle leaves every letter as it was, and two processes never work on the same one.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from redrive.core import codec, meters
from redrive.core import outcome as o
from redrive.core.acts import MISSING, Refusal, SkipCode, Skipped
from redrive.core.decide import ToCancelled, ToDone, decide_letter
from redrive.core.item import Attempt, Ending, History, Item, Millis
from redrive.core.policy import Policy
from redrive.core.select import Ids
from redrive.core.verbs import (
    Answer,
    NewEntry,
    Settlement,
    Verdict,
)
from redrive.engine import signals
from redrive.engine.caller import Caller
from redrive.engine.evidence import failure_of, text_of
from redrive.engine.ids import new_id
from redrive.engine.keeper import Keeper
from redrive.engine.report import end_event, settlement_of
from redrive.engine.store_retry import PAUSES, retry_unknown
from redrive.errors import NotFound, PayloadError, PayloadUndecodable
from redrive.events import Amended, Events
from redrive.office.in_place_job import Halt, Job, Worked, WorkRecord, why_not
from redrive.stores.audit import TOPIC
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.clock import Clock

__all__ = ["Halt", "Shift", "Worked", "last_attempt", "last_attempts", "would_work"]

T = TypeVar("T")
WORD = "work"
IN_PLACE = "in place by "
"""The beginning of the note of an attempt that was made on a letter."""
GIVEN_AWAY = Refusal("it was held by another process", "leased")
HISTORIES_AT_ONCE = 50
RETRY_PAUSES = [PAUSES.delay(failures, 0.0) or 0 for failures in range(1, 8)]
"""Before the retries of a verb: the result of the work on a letter must survive a short outage of the store."""


class _Hand:
    """A letter in hand. `over`: the function has ended, and the result is yet to be settled."""

    def __init__(self, item: Item, taken: Millis, lease: Millis) -> None:
        self.item = item
        self.taken = taken
        self.lease = lease
        self.kept: Millis | None = taken
        self.over = False
        self.lost = False
        self.task: asyncio.Task[None] | None = None

    def lose(self) -> bool:
        if self.over:
            return False  # the store refuses the result
        self.lost = True
        if self.task is not None:
            self.task.cancel()
        return True


class Shift:
    """One call of `letters.work`: its letters, its function, and the worker name of its leases."""

    def __init__(self, store: Store, job: Job, *, events: Events, clock: Clock) -> None:
        self._store = store
        self._job = job
        self._events = events
        self._clock = clock
        self._worker = f"{platform.node() or 'host'}-{os.getpid()}-{WORD}-{new_id()[:8]}"
        self._caller = Caller(job.concurrency)
        self._hands: dict[str, _Hand] = {}
        self._waiting: deque[str] = deque()
        self._full_at = 0
        self._total = 0
        self._halted = ""
        self._done: list[str] = []
        self._kept: list[Skipped] = []
        self._cancelled: list[Skipped] = []
        self._skipped: list[Skipped] = []
        self._left: list[str] = []

    async def work(self, ids: Sequence[str]) -> Worked:
        self._waiting.extend(dict.fromkeys(ids))
        self._total = len(self._waiting)
        leases = Keeper(
            self._worker, self._store, self._at_work, shortest=self._job.ttl, events=self._events, clock=self._clock
        )
        keeper = asyncio.create_task(leases.run())
        try:
            await self._go_on()
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            self._caller.close()
            await asyncio.shield(self._end())
        return self._worked()

    def _at_work(self) -> list[_Hand]:
        return [hand for hand in self._hands.values() if not hand.over]

    async def _go_on(self) -> None:
        while self._hands or (self._waiting and not self._halted):
            room = self._job.concurrency - len(self._hands)
            if room and self._waiting and not self._halted:
                await self._take(await self._paced(room))
            tasks = [hand.task for hand in self._hands.values() if hand.task is not None]
            if tasks:
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()

    async def _paced(self, room: int) -> int:
        """How many may begin now; waits until it is at least one."""
        rate = self._job.pace
        if rate is None:
            return room
        while True:
            now = self._clock.monotonic() * 1000
            free = meters.room(rate.interval, rate.most, self._full_at, now)
            if free:
                count = min(free, room, len(self._waiting))
                self._full_at = meters.spent(rate.interval, self._full_at, now, count)
                return count
            opens = meters.opens_at(rate.interval, rate.most, self._full_at)
            await self._clock.sleep(max(1, -(-(opens - now) // 1000)))

    async def _take(self, count: int) -> None:
        if self._halted:  # while the pace made us wait
            return
        wanted = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        job = self._job
        lending = asyncio.ensure_future(
            self._retry(lambda: self._store.lease_letters(wanted, self._worker, job.ttl, early=job.early))
        )
        try:
            lent = await asyncio.shield(lending)
        except asyncio.CancelledError:
            # The leases that are on their way must be given back.
            self._hands |= {item.id: _Hand(item, self._clock.monotonic(), job.ttl) for item in await lending}
            self._left += [each for each in wanted if each not in self._hands]
            raise
        except BaseException:
            self._left += wanted
            raise
        for item in lent:
            hand = self._hands[item.id] = _Hand(item, self._clock.monotonic(), job.ttl)
            hand.task = asyncio.create_task(self._one(hand))
        given = {item.id for item in lent}
        for each in wanted:
            if each not in given:
                self._skipped.append(Skipped(each, *await self._why_not(each)))
                self._tell()

    async def _why_not(self, item_id: str) -> Refusal:
        try:
            item = (await self._retry(lambda: self._store.get(item_id))).item
        except NotFound:
            return MISSING
        return why_not(item, self._clock.now(), early=self._job.early) or GIVEN_AWAY

    # --- one letter ---

    async def _one(self, hand: _Hand) -> None:
        try:
            value, error = await self._called(hand.item)
            hand.over = True
            await self._ended(hand, *self._judged(value, error))
        except asyncio.CancelledError:
            if not hand.lost:
                raise
            self._skipped.append(Skipped(hand.item.id, "its lease was lost", "leased"))
        finally:
            if hand.over or hand.lost:
                del self._hands[hand.item.id]
                self._tell()

    async def _called(self, item: Item) -> tuple[object, BaseException | None]:
        """The function's result or error: SystemExit is an error too, and only the end of this shift is not."""
        if item.flaw:  # the rest of a damaged payload must not be taken for the whole
            return None, PayloadUndecodable(f"the payload cannot be used: {item.flaw}")
        value, error = await self._caller(self._job.function, item)
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("the function was cancelled from within")
        return (None, value) if isinstance(value, signals.Signal | Halt) else (value, error)

    def _judged(self, value: object, error: BaseException | None) -> tuple[o.Outcome, str]:
        """The outcome, and why the letter stays one or was cancelled."""
        if isinstance(error, Halt):
            self._halted = self._halted or text_of(error) or "asked to stop"
            return o.Release(), ""
        if error is None:
            try:
                return o.Done(codec.dump_result(value, limit=self._job.max_result)), ""
            except PayloadError as refused:
                error = refused
        if isinstance(error, signals.Cancel):
            return o.Cancelled(text_of(error)), text_of(error)
        if isinstance(error, signals.Snooze):
            return o.Snooze(error.after, error.note), error.note or "not now"
        source = error.__cause__ or error if isinstance(error, signals.Signal) else error
        failure = failure_of(source, Policy(), frames=self._job.frames)
        error.__traceback__ = None  # frames keep locals alive
        after = error.after if isinstance(error, signals.Retry) else None
        return o.Fail(failure, after), f"{failure.type}: {failure.text}"

    async def _ended(self, hand: _Hand, outcome: o.Outcome, why: str) -> None:
        act, ran = self._job.act, max(0, self._clock.monotonic() - hand.taken)
        note = f"{IN_PLACE}{act.actor}: {act.reason}"
        settlement = settlement_of(hand.item, outcome, worker=self._worker, ran=ran, note=note)
        decision = settlement.decision
        over = isinstance(decision, ToDone | ToCancelled)
        word = "done" if isinstance(decision, ToDone) else "cancelled"
        # One for each letter: a process that is killed after a thousand letters leaves a thousand entries.
        entry = self._entry((hand.item.id,), {word: 1}) if over else None
        # A letter that was only released keeps no attempt.
        attempt = None if isinstance(outcome, o.Release) else settlement.attempt
        settlement = replace(settlement, attempt=attempt, audit=entry)
        # The result is settled even if this call is cancelled now.
        answer = await asyncio.shield(self._settled(settlement))
        if answer.verdict is Verdict.REFUSED:
            self._skipped.append(Skipped(settlement.id, answer.reason or GIVEN_AWAY.reason, GIVEN_AWAY.code))
        elif isinstance(outcome, o.Release):
            self._left.append(settlement.id)
        elif isinstance(decision, ToDone):
            self._done.append(settlement.id)
        elif isinstance(decision, ToCancelled):
            self._cancelled.append(Skipped(settlement.id, why, "cancelled"))
        else:
            code: SkipCode = "put_off" if isinstance(outcome, o.Snooze) else "error"
            self._kept.append(Skipped(settlement.id, why, code))
        if self._events and over:
            self._events.emit(end_event(self._worker, hand.item.queue, settlement, answer, ran=ran))

    def _entry(self, changed: tuple[str, ...], counts: dict[str, int]) -> NewEntry:
        act, body = self._job.act, codec.encode(WorkRecord(WORD, Ids(()), changed, counts))
        return NewEntry(TOPIC, body, act.actor, act.reason, act.request_id)

    async def _settled(self, settlement: Settlement) -> Answer:
        return (await self._retry(lambda: self._store.settle_letters([settlement])))[0]

    # --- the end ---

    async def _end(self) -> None:
        """Release the letters in hand, and write the audit."""
        stopped = self._at_work()
        tasks = [hand.task for hand in self._hands.values() if hand.task is not None]
        for hand in stopped:
            if hand.task is not None:
                hand.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        free = [hand.item for hand in stopped if not hand.lost]
        held = [Settlement(item.id, item.deliveries, decide_letter(item, o.Release())) for item in free]
        self._left += [each.id for each in held]
        try:
            if held:
                await self._retry(lambda: self._store.settle_letters(held))
        finally:
            await self._conclude()

    async def _conclude(self) -> None:
        """The audit only counts the letters that stayed: the new attempt of each names the actor and the reason."""
        act, changed = self._job.act, len(self._done) + len(self._cancelled)
        if self._kept:
            entry = self._entry((), {"kept": len(self._kept)})
            await self._retry(lambda: self._store.append([entry]))
        if self._events and (changed or self._kept):
            left = len(self._kept) + len(self._skipped)
            self._events.emit(Amended(WORD, act.actor, act.reason, act.request_id, changed, left))

    # --- progress ---

    def _worked(self) -> Worked:
        return Worked(
            tuple(self._done),
            tuple(self._kept),
            tuple(self._cancelled),
            tuple(self._skipped),
            (*self._left, *self._waiting),
            self._halted,
        )

    def _tell(self) -> None:
        if self._job.on_progress is not None:
            reached = len(self._done) + len(self._kept) + len(self._cancelled) + len(self._skipped)
            self._job.on_progress(reached, self._total)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Every verb may be repeated, and a store that fails for a moment is no reason to stop."""
        return (await retry_unknown(call, RETRY_PAUSES, self._clock, unavailable=True))[0]


async def would_work(store: Store, ids: Sequence[str], *, early: bool) -> Worked:
    """A dry run: which letters could be leased now."""
    left: list[str] = []
    skipped: list[Skipped] = []
    chosen = list(dict.fromkeys(ids))
    for start in range(0, len(chosen), PAGE_LIMIT):
        bite = chosen[start : start + PAGE_LIMIT]
        now = (await store.tally(members=False)).at
        there = {item.id: item for item in await store.find(Ids(tuple(bite)), PAGE_LIMIT)}
        for each in bite:
            why = why_not(there[each], now, early=early) if each in there else MISSING
            if why is None:
                left.append(each)
            else:
                skipped.append(Skipped(each, *why))
    return Worked(skipped=tuple(skipped), left=tuple(left))


async def last_attempts(items: Iterable[Item], history: Callable[[str], Awaitable[History]]) -> dict[str, Attempt]:
    """As `last_attempt`, by id. Reads histories only of letters that were leased since they died."""

    async def read(item_id: str) -> History | None:
        try:
            return await history(item_id)
        except NotFound:  # removed since it was found
            return None

    ids = [
        item.id
        for item in items
        if item.letter is not None and item.leased_at is not None and item.leased_at >= item.letter.died_at
    ]
    found: dict[str, Attempt] = {}
    for start in range(0, len(ids), HISTORIES_AT_ONCE):
        histories = await asyncio.gather(*[read(each) for each in ids[start : start + HISTORIES_AT_ONCE]])
        found |= {each.item.id: last for each in histories if each and (last := last_attempt(each)) is not None}
    return found


def last_attempt(history: History) -> Attempt | None:
    """The last failed attempt on a letter in place, since it died: why it is still a letter."""
    letter = history.item.letter
    for attempt in reversed(history.attempts):
        if letter is None or attempt.started_at < letter.died_at:
            return None
        if attempt.failure is not None:
            # The attempt that the letter died of may have begun in the same millisecond.
            return attempt if attempt.ending is Ending.FAILED and attempt.note.startswith(IN_PLACE) else None
    return None
