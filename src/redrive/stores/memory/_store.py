"""The reference store: the contract of stores.base in its plainest form, and the model the engines are compared with.

Verbs plan on frozen values first and write afterwards, so a verb that raises has changed nothing. One lock around each
verb makes it atomic for loops in several threads; nothing is awaited while it is held.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from heapq import nsmallest
from typing import Self

from redrive._version import __version__
from redrive.core import select
from redrive.core.item import Deed, History, Instant, Item, Millis, NewItem
from redrive.core.select import Ids, Selection
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    Act,
    Amended,
    Answer,
    Backup,
    CauseTally,
    Change,
    Checkup,
    Document,
    DocumentWrite,
    Entry,
    Extended,
    Held,
    IdPage,
    LeaseRequest,
    Leases,
    NewEntry,
    Page,
    PutResult,
    QueueChange,
    Settled,
    Settlement,
    Skipped,
    StoreInfo,
    Tally,
    Tombstone,
    Verdict,
    WorkerBeat,
    WorkerFacts,
    refusal,
)
from redrive.errors import ConfigError, Conflict, NotFound, StoreUnavailable
from redrive.stores import audit
from redrive.stores import cursor as cursors
from redrive.stores.base import IDS_LIMIT, PAGE_LIMIT
from redrive.stores.checks import (
    check_act,
    check_change,
    check_entries,
    check_new,
    check_not_within,
    check_page,
    check_text,
    check_writes,
)
from redrive.stores.clock import Clock, StoreTime, SystemClock
from redrive.stores.memory import _moves
from redrive.stores.memory._leasing import Leasing
from redrive.stores.memory._shelf import Documents, Journal, Presence
from redrive.stores.memory._table import Table
from redrive.stores.memory._waiters import Waiters


class MemoryStore:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._open = False
        self._was_open = False
        self._time = StoreTime(self._clock)
        self._table = Table()
        self._leasing = Leasing(self._table)
        self._tombstones: dict[str, Tombstone] = {}
        self._documents = Documents()
        self._journal = Journal()
        self._presence = Presence()
        self._waiters = Waiters()
        _stores.add(self)

    def forget_parent(self) -> None:
        """In a forked child, which goes on with a copy: no thread of the parent will ever release its lock here."""
        self._lock = threading.Lock()
        self._waiters = Waiters()

    # --- life ---

    async def open(self) -> Self:
        """What was put before a close is still there: only the end of the process loses it."""
        with self._lock:
            self._open = self._was_open = True
        return self

    async def close(self) -> None:
        with self._lock:
            self._open = False
            self._waiters.wake()

    def info(self) -> StoreInfo:
        return StoreInfo(
            engine="memory", location="memory:", durability="none", library=f"redrive {__version__}", schema=1
        )

    @asynccontextmanager
    async def _verb(self) -> AsyncIterator[Instant]:
        """The lock and the instant at which everything in the verb happens.

        Other tasks get a turn first, as with any store that does io: a loop of verbs must not starve the event loop.
        Nothing is awaited after that, so a verb that is cancelled has not happened.
        """
        await asyncio.sleep(0)
        with self._lock:
            if not self._open:
                raise StoreUnavailable(
                    f"the memory store {'is closed' if self._was_open else 'is not open'}",
                    hint="await store.open() first, and use it before close()",
                )
            yield self._time.now()

    # --- the way of an item ---

    async def put(self, items: Sequence[NewItem], within: object | None = None) -> PutResult:
        check_not_within(within, "memory")
        async with self._verb() as now:
            check_new(items)
            return self._put(items, now)

    def _put(self, items: Sequence[NewItem], now: Instant) -> PutResult:
        added: list[str] = []
        already: list[str] = []
        for new in items:
            # A pruned id counts as there: the late repeat of an old put must not run the work again.
            if new.id in self._table.items or new.id in self._tombstones:
                already.append(new.id)
                continue
            self._save(_moves.created(new, self._table.next_seq(), now))
            added.append(new.id)
        return PutResult(tuple(added), tuple(already))

    def _save(self, item: Item) -> None:
        self._table.save(item)
        if item.state is State.READY:
            self._waiters.wake(item.queue)

    async def lease(self, request: LeaseRequest) -> Leases:
        async with self._verb() as now:
            return self._leasing.lease(request, now)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        async with self._verb() as now:
            for settlement in settlements:
                check_new(settlement.follow_ups)
            answers = tuple([self._settle(settlement, now) for settlement in settlements])
            return Settled(answers, None if then is None else self._leasing.lease(then, now))

    def _settle(self, settlement: Settlement, now: Instant) -> Answer:
        item = self._table.items.get(settlement.id)
        if item is None:
            return Answer(settlement.id, Verdict.REFUSED, "no such item")
        if item.deliveries != settlement.delivery:
            reason = f"lease was given away: delivery {item.deliveries} is current"
            return Answer(item.id, Verdict.REFUSED, reason)
        if item.state is not State.LEASED:
            return Answer(item.id, Verdict.ALREADY)
        self._save(_moves.settled(item, settlement.decision, now))
        if settlement.attempt is not None:
            self._table.add_attempt(item.id, settlement.attempt)
        self._put(settlement.follow_ups, now)
        return Answer(item.id, Verdict.APPLIED)

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        async with self._verb() as now:
            return Extended(tuple([one.id for one in held if not self._extend(one, now, now + ttl)]))

    def _extend(self, held: Held, now: Instant, until: Instant) -> bool:
        item = self._table.items.get(held.id)
        if item is None or item.deliveries != held.delivery or item.lease_until is None or item.lease_until <= now:
            return False
        if until > item.lease_until:
            self._save(_moves.extended(item, until))
        return True

    async def reclaim(
        self,
        worker: str,  # noqa: ARG002 - the fence is the delivery number; the item goes on naming the worker that lost it
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        async with self._verb() as now:
            lanes = [self._table.lanes[queue] for queue in dict.fromkeys(queues) if queue in self._table.lanes]
            wanted = None if ids is None else frozenset(ids)
            slots = [slot for lane in lanes for slot in lane.leased.until(None if force else now)]
            chosen = nsmallest(max(0, limit), (slot for slot in slots if wanted is None or slot.id in wanted))
            items = [_moves.reclaimed(self._table.items[slot.id], ttl, now) for slot in chosen]
            for item in items:
                self._save(item)
            return tuple(items)

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        check_act(by)
        async with self._verb() as now:
            matching = self._matching(selection, now)
            if expect is not None and len(matching) != expect:
                raise Conflict(
                    f"{len(matching)} items match, not {expect}; nothing was changed",
                    hint="look again at what the selection finds, then repeat with the new number",
                )
            if isinstance(selection, Ids):
                ids = tuple(dict.fromkeys(selection.ids))
            else:
                ids = tuple(item.id for item in matching[:PAGE_LIMIT])
            result = self._judge(ids, change, by)
            self._audit(audit.AuditRecord(audit.word(change), selection, result.changed, change), by, now)
            for item_id in result.changed:
                self._save(_moves.amended(self._table.items[item_id], change, now))
                self._table.add_deed(item_id, Deed(now, audit.word(change), by.actor, by.reason, by.request_id))
            return result

    def _judge(self, ids: tuple[str, ...], change: Change, by: Act) -> Amended:
        changed: list[str] = []
        already: list[str] = []
        skipped: list[Skipped] = []
        for item_id in ids:
            item = self._table.items.get(item_id)
            if item is None:
                skipped.append(Skipped(item_id, "no such item"))
            elif self._table.has_deed(item_id, by.request_id):
                already.append(item_id)
            elif reason := refusal(change, item.state, None if item.letter is None else item.letter.disposition):
                skipped.append(Skipped(item_id, reason))
            else:
                changed.append(item_id)
        return Amended(tuple(changed), tuple(already), tuple(skipped))

    def _audit(self, record: audit.AuditRecord, by: Act, now: Instant) -> None:
        if record.changed:
            self._journal.append(audit.entry(record, by), now)

    def _matching(self, selection: Selection, now: Instant) -> list[Item]:
        """In the order given for ids, else earliest enqueued first."""
        if isinstance(selection, Ids):
            return self._table.present(selection.ids)
        return [item for item in self._table.oldest_first() if select.matches(selection, item, now)]

    # --- looking ---

    async def get(self, item_id: str) -> History:
        async with self._verb():
            item = self._table.items.get(item_id)
            if item is None:
                pruned = item_id in self._tombstones
                raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
            return self._table.history(item)

    async def find(self, selection: Selection, limit: int = 100, cursor: str | None = None) -> Page:
        async with self._verb() as now:
            check_page(limit)
            return self._page(selection, limit, cursor, now)

    async def ids(self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None) -> IdPage:
        async with self._verb() as now:
            check_page(limit, IDS_LIMIT)
            page = self._page(selection, limit, cursor, now)
            return IdPage(tuple([item.id for item in page.items]), page.next)

    def _page(self, selection: Selection, limit: int, cursor: str | None, now: Instant) -> Page:
        by_death = select.pins_dead(selection)
        order = "died" if by_death else "enqueued"
        rows = self._table.latest_first(by_death=by_death, before=cursors.read(order, cursor))
        items: list[Item] = []
        scanned, last = 0, (0, 0)
        for place, item in rows:
            scanned += 1
            if not select.matches(selection, item, now):
                continue
            if len(items) == limit:
                return Page(tuple(items), cursors.write(order, last), scanned)
            items.append(item)
            last = place
        return Page(tuple(items), None, scanned)

    async def tally(self) -> Tally:
        async with self._verb() as now:
            return Tally(now, tuple(lane.tally() for _, lane in sorted(self._table.lanes.items())))

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        async with self._verb():
            return tuple(self._table.causes(queue)[: max(0, limit)])

    # --- keeping house ---

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        check_act(by)
        async with self._verb() as now:
            resolved = [item for item in self._matching(selection, now) if _resolved(item)]
            doomed = nsmallest(max(0, limit), resolved, key=lambda item: item.seq)
            tombstones = tuple(_tombstone(item, by, now) for item in doomed)
            self._audit(audit.AuditRecord("prune", selection, tuple(item.id for item in doomed)), by, now)
            for item, tombstone in zip(doomed, tombstones, strict=True):
                self._table.drop(item)
                self._tombstones[item.id] = tombstone
            return tombstones

    async def tombstone(self, item_id: str) -> Tombstone | None:
        async with self._verb():
            return self._tombstones.get(item_id)

    async def configure(self, queue: str, change: QueueChange) -> None:
        check_change(queue, change)
        async with self._verb():
            lane = self._table.declare(queue)
            if change.paused is None:
                return
            lane.paused = change.paused
            lane.paused_by, lane.paused_reason = (change.by, change.reason) if change.paused else ("", "")
            if not change.paused:
                self._waiters.wake(queue)

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        check_text("worker", worker)
        async with self._verb() as now:
            self._presence.beat(worker, facts, ttl, now)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        async with self._verb() as now:
            return self._presence.workers(now)

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        check_text("name", name)
        check_text("owner", owner)
        async with self._verb() as now:
            return self._presence.elect(name, owner, ttl, now)

    async def wait(self, queues: Sequence[str], timeout: Millis) -> None:
        async with self._verb() as now:
            # Under the lock: what comes after this look finds the waiter registered.
            waiter = self._waiters.add(queues)
            lanes = (self._table.lanes[queue] for queue in waiter.queues if queue in self._table.lanes)
            times = (lane.next_change() for lane in lanes)
            patience = min([timeout, *(when - now for when in times if when is not None)])
        try:
            if patience > 0:
                await self._clock.wait(waiter.event, patience)
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    # --- beside the queue ---

    async def document(self, kind: str, key: str) -> Document | None:
        async with self._verb():
            return self._documents.get(kind, key)

    async def documents(self, kind: str) -> tuple[Document, ...]:
        async with self._verb():
            return self._documents.all(kind)

    async def write_documents(self, writes: Sequence[DocumentWrite]) -> tuple[Document, ...]:
        check_writes(writes)
        async with self._verb():
            return self._documents.write(writes)

    async def append(self, entries: Sequence[NewEntry]) -> tuple[int, ...]:
        check_entries(entries)
        async with self._verb() as now:
            return tuple([self._journal.append(entry, now) for entry in entries])

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        async with self._verb():
            return self._journal.read(topic, after, limit)

    # --- upkeep ---

    async def check(self, *, quick: bool = False) -> Checkup:  # noqa: ARG002 - nothing here takes long to read
        async with self._verb():
            return Checkup(len(self._table.items), self._table.findings())

    async def backup(self, path: str, *, force: bool = False) -> Backup:  # noqa: ARG002 - there is no file to write
        async with self._verb():
            raise ConfigError(
                "a memory store has nothing to copy: it is gone with its process",
                field="store",
                hint="use a store that keeps its data, such as sqlite:///redrive.db",
            )


def _resolved(item: Item) -> bool:
    if item.letter is not None:
        return item.letter.disposition is Disposition.TRASH
    return item.state in {State.DONE, State.CANCELLED}


def _tombstone(item: Item, by: Act, now: Instant) -> Tombstone:
    digest = hashlib.sha256(item.payload).hexdigest()
    return Tombstone(item.id, item.queue, item.state, digest, now, by.actor, by.reason)


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _forget_parent() -> None:
    for store in tuple(_stores):
        store.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
