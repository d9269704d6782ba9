"""The source of a receiver: a queue from which items are received without a handler.

It leases items, and brings back those whose lease expired as the reaper does, but without delay and without an
exclusive lease. Items that are too old are ended and not given. Receivers that ask at the same time share one write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from redrive.core import outcome as o
from redrive.core.item import Item, Millis
from redrive.core.verbs import LeaseRequest, Leases, Want
from redrive.engine.batcher import Batcher
from redrive.engine.ids import fresh_id
from redrive.engine.reaper import RECLAIM_LIMIT, lost_settlement
from redrive.engine.report import RECEIVED, Reporter, settlement_of
from redrive.engine.store_retry import retry_unknown
from redrive.errors import EncryptionKeyMissing
from redrive.events import Events, Leased
from redrive.stores.base import Store
from redrive.stores.clock import Clock

RECLAIM_EVERY: Millis = 1000
RESCUE: Millis = 5_000
"""The lease on an item that the next write makes ready again."""
SEEN = o.Release("visibility timeout 0", counted=True)
_MOST_TTLS = 64
"""Batchers that are kept, one for each length of a lease: programs use a few."""


class QueueSource:
    """`expired`: how an item ends that is too old to be given; None if it is not."""

    def __init__(
        self,
        queue: str,
        worker: str,
        store: Store,
        expired: Callable[[Item], o.Outcome | None],
        *,
        report: Reporter,
        events: Events,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._store = store
        self._expired = expired
        self._report = report
        self._events = events
        self._clock = clock
        self._reclaim_at: Millis = 0
        self._batchers: dict[Millis, Batcher[int, Sequence[Item]]] = {}

    async def take(self, limit: int, ttl: Millis) -> Sequence[Item]:
        """Up to `limit` items, leased for `ttl`. A ttl of 0 gives them back at once: they were only seen."""
        while True:
            items = await self._batcher(ttl)(limit)
            old = [(item, end) for item in items if (end := self._expired(item)) is not None]
            if old:
                await self._settle(old)
                gone = {item.id for item, _ in old}
                if len(gone) == len(items):
                    continue
                items = [item for item in items if item.id not in gone]
            if items and not ttl:
                await self._settle([(item, SEEN) for item in items])
            return items

    def _batcher(self, ttl: Millis) -> Batcher[int, Sequence[Item]]:
        batcher = self._batchers.get(ttl)
        if batcher is None:
            if len(self._batchers) >= _MOST_TTLS:
                self._batchers.clear()
            batcher = self._batchers[ttl] = Batcher(partial(self._lease, ttl))
        return batcher

    async def _lease(self, ttl: Millis, limits: Sequence[int]) -> list[Sequence[Item]]:
        """Items for several receivers, the first of them first."""
        room, now = sum(limits), self._clock.monotonic()
        request = self._request(room, ttl)
        leases, _ = await retry_unknown(lambda: self._store.lease(request))
        items = self._of(leases)
        if items and self._events:
            self._events.emit(Leased(self._worker, tuple(item.id for item in items)))
        if len(items) < room or now >= self._reclaim_at:
            self._reclaim_at = now + RECLAIM_EVERY
            more = await self._bring_back(room - len(items), ttl)
            # A very short lease may have expired meanwhile: then the later delivery counts.
            items = tuple({item.id: item for item in (*items, *more)}.values())
        starts = [sum(limits[:number]) for number in range(len(limits))]
        return [items[start : start + limit] for start, limit in zip(starts, limits, strict=True)]

    def _request(self, limit: int, ttl: Millis) -> LeaseRequest:
        want = Want(self._queue, limit, ttl or RESCUE, RECEIVED.max_crashes)
        return LeaseRequest(self._worker, (want,), fresh_id())

    async def _bring_back(self, room: int, ttl: Millis) -> Sequence[Item]:
        """Make items of lost receivers ready again, and lease up to `room` items in the same write."""
        lost, _ = await retry_unknown(lambda: self._store.reclaim(self._worker, (self._queue,), RESCUE, RECLAIM_LIMIT))
        if not lost:
            return ()
        settlements = [lost_settlement(item, RECEIVED, finder=self._worker) for item in lost]
        then = self._request(room, ttl) if room else None
        settled, _ = await retry_unknown(lambda: self._store.settle(settlements, then))
        if self._events:
            self._report.reclaimed(lost, settlements, settled.answers)
        return () if settled.leases is None else self._of(settled.leases)

    async def _settle(self, ends: Sequence[tuple[Item, o.Outcome]]) -> None:
        settlements = [settlement_of(item, outcome, worker=self._worker) for item, outcome in ends]
        settled, _ = await retry_unknown(lambda: self._store.settle(settlements))
        self._report.settled([item for item, _ in ends], settlements, settled.answers)

    def _of(self, leases: Leases) -> tuple[Item, ...]:
        """A receiver without any keys must not take what it cannot read for an empty queue."""
        if leases.locked and not leases.items and not self._store.info().keys:
            raise EncryptionKeyMissing(leases.locked)
        return leases.items
