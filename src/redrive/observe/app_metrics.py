"""Engine metrics: items of every queue, counted from an app's events; depths from the store's tally at scrape time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import product

from redrive import events as ev
from redrive.core.families import family_of, is_family
from redrive.core.verbs import Tally
from redrive.observe.metrics import AskedInLoop, Family, Gauge, Metrics, Sample, store_key
from redrive.stores.base import Store

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
DEPTHS = ("ready", "leased", "held", "parked")
RETRIED = ("failed", "crashed")
FROM_ZERO = ("items_enqueued", "retries", "settles_refused", "leases_lost", "leases_reclaimed", "items_running")

COUNTED: dict[type[ev.Event], tuple[str, str]] = {
    ev.SettleRefused: ("settles_refused", "queue"),
    ev.LeaseLost: ("leases_lost", "queue"),
    ev.Reclaimed: ("leases_reclaimed", "queue"),
    ev.StoreFailed: ("store_errors", "part"),
}
"""Events that are counted as they are: the family, and the field of the event that is its label."""


class AppMetrics(Metrics):
    """Counters are those of this process, from the first access to `app.metrics` on. Depths are those of the store, and
    so the same in every process that is scraped.
    """

    families = (
        Family("counter", "items_enqueued", "Items that were added to a queue.", ("queue",)),
        Family(
            "counter",
            "deliveries",
            "Deliveries that ended, and where the item is now.",
            ("queue", "ending", "state"),
        ),
        Family("histogram", "delivery_duration_seconds", "How long a handler ran.", ("queue",), SECONDS),
        Family("counter", "retries", "Failed and crashed deliveries after which the item is tried again.", ("queue",)),
        Family("counter", "dead_letters", "Items that became dead letters.", ("queue", "reason")),
        Family("counter", "settles_refused", "Results that came after the lease was lost.", ("queue",)),
        Family("counter", "leases_lost", "Leases that could not be extended; the handler was cancelled.", ("queue",)),
        Family("counter", "leases_reclaimed", "Expired leases that were taken over from another worker.", ("queue",)),
        Family("counter", "schedule_ticks_missed", "Ticks of a schedule that were not fired in time.", ("schedule",)),
        Family("counter", "store_errors", "Calls of the store that failed and are tried again.", ("part",)),
        Family("gauge", "items_running", "Handlers that run in this process.", ("queue",)),
        Family("gauge", "queue_depth", "Live items in the store.", ("queue", "state")),
        Family("gauge", "queue_oldest_due_seconds", "How long the oldest due item has waited.", ("queue",)),
        Family("gauge", "open_letters", "Open dead letters in the store.", ("queue",)),
    )

    def __init__(
        self, events: ev.Events, store: Callable[[], Store], loop: Callable[[], asyncio.AbstractEventLoop | None]
    ) -> None:
        """`loop` is the one in which the store is used; None while it is not open."""
        super().__init__()
        self._store = store
        self._loop = loop
        self._tally = AskedInLoop(lambda: store().tally(members=False), loop)
        self._families: set[str] = set()
        self._running: dict[str, tuple[str, str]] = {}
        events.subscribe(self._heard)

    async def close(self) -> None:
        """The counters stay; depths are no longer reported."""
        await self._tally.close()
        self._retire()

    def gauges(self) -> list[Gauge]:
        return [] if self._loop() is None else [Gauge(store_key(self._store()), self._tally, self._depths)]

    def _label(self, queue: str) -> str:
        """Of a member that of its family: there may be very many of them."""
        family = family_of(queue) if self._families else ""
        return family if family in self._families else queue

    def _depths(self, tally: Tally) -> Iterator[Sample]:
        self._families.update([row.queue for row in tally.families])
        return _depths(tally)

    def _heard(self, event: ev.Event) -> None:
        match event:
            case ev.Started(worker=worker, queue=queue, id=id):
                self._ended(id)
                self._running[id] = worker, self._label(queue)
                self._count("items_running", (self._label(queue),))
            case ev.Finished():
                self._finished(event)
            case ev.Enqueued(queue=queue, ids=ids):
                self._count("items_enqueued", (self._label(queue),), len(ids))
            case ev.TicksMissed(schedule=schedule, missed=missed):
                self._count("schedule_ticks_missed", (schedule,), missed)
            case ev.WorkerStarted(queues=queues):
                self._begin(queues)
            case ev.WorkerStopped(worker=worker):
                for each in [each for each, run in self._running.items() if run[0] == worker]:
                    self._ended(each)
            case ev.SettleRefused(worker=worker, id=id) | ev.LeaseLost(worker=worker, id=id):
                self._ended(id, worker)
            case _:
                pass
        if type(event) in COUNTED:
            family, label = COUNTED[type(event)]
            name = getattr(event, label)
            self._count(family, (self._label(name) if label == "queue" else name,))

    def _begin(self, queues: tuple[str, ...]) -> None:
        """Prometheus sees the first increase of a counter only after a zero."""
        self._families.update(filter(is_family, queues))
        for family, queue in product(FROM_ZERO, queues):
            self._count(family, (queue,), 0)

    def _finished(self, event: ev.Finished) -> None:
        queue = self._label(event.queue)
        self._ended(event.id)
        self._count("deliveries", (queue, event.ending, event.state))
        if event.ending != "crashed":
            self._observe("delivery_duration_seconds", (queue,), event.ran_ms / 1000)
        if event.state == "dead":
            self._count("dead_letters", (queue, event.reason))
        elif event.state == "ready" and event.ending in RETRIED:
            self._count("retries", (queue,))

    def _ended(self, id: str, worker: str = "") -> None:
        """`worker`: unless another one of this process runs it now."""
        run = self._running.get(id)
        if run is not None and worker in ("", run[0]):
            del self._running[id]
            self._count("items_running", (run[1],), -1)


def _depths(tally: Tally) -> Iterator[Sample]:
    for row in tally.queues:
        for state in DEPTHS:
            yield Sample("queue_depth", (row.queue, state), getattr(row, state))
        waited = 0 if row.oldest_due is None else max(0, tally.at - row.oldest_due)
        yield Sample("queue_oldest_due_seconds", (row.queue,), waited / 1000)
        yield Sample("open_letters", (row.queue,), row.open)
