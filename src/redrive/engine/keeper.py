"""The keeper extends leases while their holders work, and cancels a holder whose lease is lost.

`Keeper` does so for anything that holds leases, as letters worked on in place; `WorkerKeeper` also takes back leases
that ran out unnoticed and passes cancel requests on. Beside them, the sweep that ends handlers at their timeout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

from redrive.core.item import Item, Millis
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
"""A lease is extended before a third of it is over: two more tries fit in before it ends."""
ASK_EVERY: Millis = 5_000
"""A worker extends at least this often: the answer also names the items that have a cancel request."""
SWEEPS_PER_TIMEOUT = 20
SWEEP_MIN: Millis = 10
SWEEP_MAX: Millis = 1000


class Holder(Protocol):
    """`kept`: when its lease began or was last extended (monotonic); None if that is not known."""

    item: Item
    kept: Millis | None

    @property
    def lease(self) -> Millis: ...

    def lose(self) -> bool:
        """The lease is lost: cancel the work. False if there is nothing to cancel."""


H = TypeVar("H", bound=Holder)


class Keeper(Generic[H]):
    """Extends the leases that `held` gives, whose lengths are `shortest` or more."""

    def __init__(
        self,
        worker: str,
        store: Store,
        held: Callable[[], Iterable[H]],
        *,
        shortest: Millis,
        events: Events,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._pause: Millis = max(1, self.period(shortest) // 2)
        self._store = store
        self._held = held
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("keeper", events, clock)

    def period(self, lease: Millis) -> Millis:
        return lease // RENEW_AT

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._pause)
            await self.keep()

    async def keep(self) -> None:
        """Extend every lease that would be due before the next round."""
        now = self._clock.monotonic()
        due: dict[Millis, list[H]] = defaultdict(list)
        for holder in self._held():
            lease = holder.lease
            if holder.kept is None or now - holder.kept + self._pause >= self.period(lease):
                due[lease].append(holder)
        for lease, holders in due.items():
            await self._extend(holders, lease, now)

    async def _extend(self, holders: list[H], lease: Millis, now: Millis) -> None:
        leases = [Held(holder.item.id, holder.item.deliveries) for holder in holders]
        extended = await self._retry(lambda: self._store.extend(leases, lease))
        gone = set(extended.lost)
        lost: list[H] = []
        for holder, asked in zip(holders, leases, strict=True):
            if asked.id not in gone:
                holder.kept = now
            elif holder.item.deliveries == asked.delivery:  # else it was taken back during the call
                lost.append(holder)
        if lost:
            await self.lost(lost)
        if extended.cancel_requested:
            await self.cancel_requested(extended.cancel_requested)

    async def lost(self, holders: list[H]) -> None:
        for holder in holders:
            if holder.lose():
                item = holder.item
                self._events.emit(LeaseLost(self._worker, item.queue, item.id, item.deliveries))

    async def cancel_requested(self, ids: Collection[str]) -> None:
        """Letters have no cancel requests."""


class WorkerKeeper(Keeper[Run]):
    def __init__(
        self, worker: str, store: Store, slots: Slots, *, reaper: Reaper, events: Events, clock: Clock
    ) -> None:
        super().__init__(worker, store, slots.held, shortest=slots.shortest_lease, events=events, clock=clock)
        self._bring_back = reaper.bring_back
        self._slots = slots

    def period(self, lease: Millis) -> Millis:
        return min(lease // RENEW_AT, ASK_EVERY)

    async def cancel_requested(self, ids: Collection[str]) -> None:
        for item_id in ids:
            run = self._slots.running.get(item_id)
            if run is None or run.asked or run.why is not None:
                continue
            reason = await self._retry(partial(cancel_reason, self._store, item_id))
            if self._slots.running.get(item_id) is run and not run.over:
                run.ask_to_stop(reason)
                item = run.item
                self._events.emit(CancelAsked(self._worker, item.queue, item.id, item.deliveries, reason))

    async def lost(self, holders: list[Run]) -> None:
        """Take back a lease that ran out while this worker slept (a closed lid, a blocked loop, a jump of the clock)
        and that no other worker took: the handler goes on under the new delivery number. Otherwise it is lost.
        """
        lease, runs = holders[0].lease, {run.item.id: run for run in holders}
        known = {key: run.item.deliveries for key, run in runs.items()}
        queues = sorted({run.item.queue for run in runs.values()})
        items = await self._retry(lambda: self._store.reclaim(self._worker, queues, lease, len(runs), list(runs)))
        strange = tuple([item for item in items if not self._slots.take_back(item)])
        if strange:
            await self._bring_back(strange)
        back = {item.id for item in items} - {item.id for item in strange}
        # The reaper may have taken one back during the call.
        back |= {key for key, run in runs.items() if run.item.deliveries != known[key]}
        running = self._slots.running
        await super().lost([run for key, run in runs.items() if key not in back and running.get(key) is run])


async def sweep_deadlines(slots: Slots, handlers: Mapping[str, Handler], clock: Clock) -> None:
    """One sweep for all handlers instead of a timer each."""
    every = [each for handler in handlers.values() for each in handler.everyone]
    timeouts = [handler.timeout for handler in every if handler.timeout is not None]
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
