"""Keeps leases alive while their handlers run, and stops handlers that ran out of lease or time, or were cancelled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import partial

from redrive.core.item import Millis
from redrive.core.verbs import Held
from redrive.engine.cancelling import cancel_reason
from redrive.engine.reaper import Reaper
from redrive.engine.registry import Handler
from redrive.engine.runner import Run, Why
from redrive.engine.slots import Slots
from redrive.engine.store_retry import StoreRetry
from redrive.events import CancelAsked, Events, LeaseLost
from redrive.stores.base import Store
from redrive.stores.clock import Clock

RENEW_AT = 3
"""A lease is prolonged before a third of it is over: two more tries fit in before it ends."""
ASK_EVERY: Millis = 5_000
"""Nor later than this: what prolongs a lease also tells of those that somebody wants cancelled."""
SWEEPS_PER_TIMEOUT = 20
SWEEP_MIN: Millis = 10
SWEEP_MAX: Millis = 1000


class Keeper:
    def __init__(
        self, worker: str, store: Store, slots: Slots, *, reaper: Reaper, events: Events, clock: Clock
    ) -> None:
        self._worker = worker
        self._bring_back = reaper.bring_back
        self._pause: Millis = max(1, _period(slots.shortest_lease) // 2)
        self._store = store
        self._slots = slots
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("keeper", events, clock)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._pause)
            await self.keep()

    async def keep(self) -> None:
        """Prolong every lease whose time would be over before the next look."""
        now = self._clock.monotonic()
        due: dict[Millis, list[Run]] = defaultdict(list)
        for run in self._slots.held():
            if run.kept is None or now - run.kept + self._pause >= _period(run.handler.lease):
                due[run.handler.lease].append(run)
        for ttl, runs in due.items():
            await self._prolong(runs, ttl, now)

    async def _prolong(self, runs: list[Run], ttl: Millis, now: Millis) -> None:
        leases = [Held(run.item.id, run.item.deliveries) for run in runs]
        extended = await self._retry(lambda: self._store.extend(leases, ttl))
        gone = set(extended.lost)
        lost: list[Run] = []
        for run, asked in zip(runs, leases, strict=True):
            if asked.id not in gone:
                run.kept = now
            elif run.item.deliveries == asked.delivery:  # else it was taken back while we asked
                lost.append(run)
        if lost:
            await self._take_back(lost, ttl)
        if extended.cancel_requested:
            await self._pass_on(extended.cancel_requested)

    async def _pass_on(self, ids: Collection[str]) -> None:
        for item_id in ids:
            run = self._slots.running.get(item_id)
            if run is None or run.asked or run.why is not None:
                continue
            reason = await self._retry(partial(cancel_reason, self._store, item_id))
            if self._slots.running.get(item_id) is run and not run.over:
                run.ask_to_stop(reason)
                item = run.item
                self._events.emit(CancelAsked(self._worker, item.queue, item.id, item.deliveries, reason))

    async def _take_back(self, runs: list[Run], ttl: Millis) -> None:
        """A lease that ran out while this worker slept (a closed lid, a blocked loop, a jump of the clock) and that
        nobody else took is ours to reclaim: the handler goes on under the new number. Otherwise it is lost.
        """
        ids = [run.item.id for run in runs]
        queues = sorted({run.item.queue for run in runs})
        items = await self._retry(lambda: self._store.reclaim(self._worker, queues, ttl, len(ids), ids))
        strange = tuple([item for item in items if not self._slots.take_back(item)])
        if strange:
            await self._bring_back(strange)
        back = {item.id for item in items} - {item.id for item in strange}
        for run in runs:
            if run.item.id not in back and self._slots.running.get(run.item.id) is run and run.why is None:
                run.cancel(Why.LOST)
                self._events.emit(LeaseLost(self._worker, run.item.queue, run.item.id, run.item.deliveries))


def _period(lease: Millis) -> Millis:
    return min(lease // RENEW_AT, ASK_EVERY)


async def sweep_deadlines(slots: Slots, handlers: Mapping[str, Handler], clock: Clock) -> None:
    """One sweep for all handlers instead of a timer each."""
    timeouts = [handler.timeout for handler in handlers.values() if handler.timeout is not None]
    if not timeouts:
        return
    pause = max(SWEEP_MIN, min(min(timeouts) // SWEEPS_PER_TIMEOUT, SWEEP_MAX))
    while True:
        await clock.sleep(pause)
        now = clock.monotonic()
        for run in tuple(slots.running.values()):
            timeout = run.handler.timeout
            # A handler that was asked to stop, and does not, still has no more time than any other.
            if timeout is not None and run.why in (None, Why.CANCELLED) and now - run.started >= timeout:
                run.cancel(Why.TIMEOUT)
