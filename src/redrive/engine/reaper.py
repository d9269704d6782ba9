"""Finds work whose worker was never heard of again and brings it back through the same `decide` and `settle`.

Every worker reaps the queues it has handlers for (and so policies); expired leases of other queues are left to those
who know them. Reclaiming gives a new delivery number, so the lost worker can no longer write; a reaper that dies
half-way leaves leases that expire again, charged once.
"""

from __future__ import annotations

import random

from redrive.core import outcome as o
from redrive.core.item import Failure, Item, Millis
from redrive.core.policy import Policy
from redrive.core.verbs import Settlement
from redrive.engine import deaths
from redrive.engine.evidence import plain_failure
from redrive.engine.policies import Policies
from redrive.engine.registry import handler_of
from redrive.engine.report import Reporter, clarified, takeover_of
from redrive.engine.slots import Slots
from redrive.engine.store_retry import StoreRetry
from redrive.events import Events
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
        await self._policies.settings.read(dict.fromkeys(item.queue for item in items))
        settlements = [self.verdict(item, whys.get(item.worker or "")) for item in items]
        settled = await self._retry(lambda: self._store.settle(settlements))
        if not self._events:
            return
        # Already: an earlier try whose answer was lost. Nobody else has had this delivery number.
        answers = await clarified(self._store, self._retry, items, settlements, settled.answers)
        self._report.reclaimed(items, settlements, answers)

    def verdict(self, item: Item, why: str | None) -> Settlement:
        policy, note = self._policies.of(item, handler_of(self._handlers, item.queue).for_kind(item.kind))
        return lost_settlement(item, policy, finder=self._worker, why=why, note=note, roll=random.random())  # noqa: S311


def lost_settlement(
    item: Item, policy: Policy, *, finder: str, why: str | None = None, note: str = "", roll: float = 0.0
) -> Settlement:
    """Of a delivery whose lease expired and that `finder` reclaimed."""
    found = f"found by {finder}"
    outcome = o.LeaseExpired(crash_failure(item, why))
    return takeover_of(item, outcome, policy, note=f"{found}; {note}" if note else found, roll=roll)


def crash_failure(item: Item, why: str | None) -> Failure:
    """Crashes of a queue are one cause for each way to die; those of which nobody said why are one more."""
    kind, key, number = "redrive.WorkerLost", f"crash in {item.queue}", item.crashes + 1
    if why is None:
        text = f"worker {item.worker} let its lease run out and was not heard of again (crash {number})"
        return plain_failure(kind, text, "crash", key=key)
    return plain_failure(kind, f"worker {item.worker} was lost: {why} (crash {number})", "crash", key=f"{key}: {why}")
