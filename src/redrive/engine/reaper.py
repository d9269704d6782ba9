"""Finds work whose worker was never heard of again and brings it back through the same `decide` and `settle`.

Every worker reaps the queues it has handlers for (and so policies); expired leases of other queues are left to those
who know them. Reclaiming gives a new delivery number, so the lost worker can no longer write; a reaper that dies
half-way leaves leases that expire again, charged once.
"""

from __future__ import annotations

import random

from redrive.core import outcome as o
from redrive.core.decide import decide
from redrive.core.item import Attempt, Ending, Failure, Item, Millis
from redrive.core.verbs import Settlement, Verdict
from redrive.engine import deaths
from redrive.engine.evidence import plain_failure
from redrive.engine.policies import Policies
from redrive.engine.report import Reporter, clarified
from redrive.engine.slots import Slots
from redrive.engine.store_retry import StoreRetry
from redrive.events import Events, Reclaimed
from redrive.stores.base import Store
from redrive.stores.clock import Clock

RECLAIM_LIMIT = 100
RESCUE_MIN: Millis = 500
RESCUE_MAX: Millis = 30_000
PERIOD_MIN: Millis = 100
PERIOD_MAX: Millis = 5_000


class Reaper:
    def __init__(
        self,
        worker: str,
        store: Store,
        slots: Slots,
        *,
        policies: Policies,
        report: Reporter,
        events: Events,
        clock: Clock,
    ) -> None:
        handlers = slots.handlers
        self._policies = policies
        self._report = report
        self._worker = worker
        self._slots = slots
        self._store = store
        self._handlers = handlers
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("reaper", events, clock)
        shortest = min(handler.lease for handler in handlers.values())
        # A reaper that dies in the middle leaves leases of its own: they must not last longer than those it found.
        self._ttl: Millis = max(RESCUE_MIN, min(shortest, RESCUE_MAX))
        self.period: Millis = max(PERIOD_MIN, min(shortest // 4, PERIOD_MAX))

    async def run(self) -> None:
        while True:
            while await self.reap() == RECLAIM_LIMIT:
                pass
            # Spread, so that a fleet that started together does not reap together.
            await self._clock.sleep(int(self.period * (0.75 + random.random() / 4)))  # noqa: S311

    async def reap(self) -> int:
        queues = tuple(self._handlers)
        items = await self._retry(lambda: self._store.reclaim(self._worker, queues, self._ttl, RECLAIM_LIMIT))
        # What this worker holds itself is not lost: it goes on under its new number.
        lost = tuple([item for item in items if not self._slots.take_back(item)])
        if lost:
            await self.bring_back(lost)
        return len(items)

    async def bring_back(self, items: tuple[Item, ...]) -> None:
        whys = await deaths.whys(self._store, {item.worker for item in items})
        await self._policies.settings.read({item.queue for item in items})
        settlements = [self.verdict(item, whys.get(item.worker or "")) for item in items]
        settled = await self._retry(lambda: self._store.settle(settlements))
        if not self._events:
            return
        # Already: an earlier try whose answer was lost. Nobody else has had this delivery number.
        answers = await clarified(self._store, self._retry, items, settlements, settled.answers)
        for item, settlement, answer in zip(items, settlements, answers, strict=True):
            if answer.verdict is not Verdict.REFUSED:
                lost_by = item.worker or ""
                self._events.emit(Reclaimed(self._worker, item.queue, item.id, item.deliveries, lost_by))
                self._report.ended(lost_by, item, settlement, answer)

    def verdict(self, item: Item, why: str | None) -> Settlement:
        outcome = o.LeaseExpired(crash_failure(item, why))
        policy, note = self._policies.of(item, self._handlers[item.queue])
        found = f"found by {self._worker}"
        attempt = lost_attempt(item, outcome.failure, f"{found}; {note}" if note else found)
        decision = decide(item, outcome, policy, roll=random.random(), age=0)  # noqa: S311
        return Settlement(item.id, item.deliveries, decision, attempt)


def lost_attempt(item: Item, failure: Failure, note: str) -> Attempt:
    """The delivery that was lost; reclaiming took the next."""
    return Attempt(
        delivery=item.deliveries - 1,
        number=item.attempt,
        worker=item.worker or "",
        started_at=item.leased_at or 0,
        ran=0,
        ending=Ending.CRASHED,
        failure=failure,
        note=note,
    )


def crash_failure(item: Item, why: str | None) -> Failure:
    """Crashes of a queue are one cause for each way to die; those of which nobody said why are one more."""
    kind, key, number = "redrive.WorkerLost", f"crash in {item.queue}", item.crashes + 1
    if why is None:
        text = f"worker {item.worker} let its lease run out and was not heard of again (crash {number})"
        return plain_failure(kind, text, "crash", key=key)
    return plain_failure(kind, f"worker {item.worker} was lost: {why} (crash {number})", "crash", key=f"{key}: {why}")
