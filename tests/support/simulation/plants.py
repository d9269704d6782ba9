"""Planted bugs, in the engine and between engine and store: a simulation that finds none of them finds nothing.

Each has the class of fault by which it must be named.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

from msgspec.structs import replace

from redrive.core import outcome as o
from redrive.core.decide import Charge, ToReady
from redrive.core.item import Item, NewItem
from redrive.core.verbs import Answer, LeaseRequest, PutResult, Settled, Settlement, Verdict
from redrive.engine import report
from redrive.engine.client import Client
from redrive.engine.ids import new_id
from redrive.engine.keeper import Keeper
from redrive.engine.reaper import RECLAIM_LIMIT, Reaper
from redrive.engine.runner import Run, Why
from redrive.engine.slots import Slots
from redrive.engine.worker import Worker
from redrive.errors import OutcomeUnknown, StoreError
from tests.support.rig import plant
from tests.support.simulation.world import Through


@dataclass(frozen=True)
class Plant:
    """`named` is the class of fault. The bug is in what goes between engine and store, or replaces an attribute."""

    named: str
    through: Through = lambda store: store
    owner: object = None
    attribute: str = ""
    bug: Any = None

    def patched(self) -> AbstractContextManager[Any]:
        return mock.patch.object(self.owner, self.attribute, self.bug) if self.attribute else nullcontext()


def _in(owner: object, attribute: str, bug: object, named: str) -> Plant:
    return Plant(named, owner=owner, attribute=attribute, bug=bug)


async def _keep_nothing(self: Keeper[Any]) -> None:
    """A keeper that never extends."""


async def _reap_nothing(self: Reaper) -> int:
    """A reaper that rescues nothing."""
    return 0


async def _reap_by_force(self: Any) -> int:
    """Without looking again whether the lease is over."""
    queues = tuple(self._handlers)
    reclaim = self._store.reclaim
    items = await self._retry(lambda: reclaim(self._worker, queues, self._ttl, RECLAIM_LIMIT, force=True))
    lost = tuple([item for item in items if not self._slots.take_back(item)])
    if lost:
        await self.bring_back(lost)
    return 0


_end_event = report.end_event


def _believed(worker: str, queue: str, settlement: Settlement, answer: Answer, *, ran: int) -> object:
    """A result that was refused, because the lease was lost, taken for accepted."""
    return _end_event(worker, queue, settlement, replace(answer, verdict=Verdict.APPLIED), ran=ran)


async def _put_under_new_ids(self: Any, items: Sequence[NewItem]) -> tuple[PutResult, bool]:
    """A put of unknown outcome repeated as if it were another."""
    while True:
        try:
            return await self._store.put(items), True
        except OutcomeUnknown:
            items = [replace(item, id=new_id()) for item in items]


async def _lease_with_new_nonces(self: Any, request: LeaseRequest) -> None:
    """A lease of unknown outcome repeated as if it were another."""
    leases = await self._writing(lambda: self._store.lease(replace(request, nonce=new_id())))
    await self._begin(leases, request)


def _uncharged(self: Reaper, item: Item, why: str | None) -> Settlement:
    """A crash that is not put on record."""
    return Settlement(item.id, item.deliveries, ToReady(0, Charge.NOTHING))


_settlement = Worker._settlement  # noqa: SLF001 - a bug is planted in it


def _at_once(self: Worker, run: Run) -> Settlement:
    """A retry without its backoff."""
    made = _settlement(self, run)
    if isinstance(made.decision, ToReady) and isinstance(run.outcome, o.Fail):
        return replace(made, decision=replace(made.decision, delay=0))
    return made


def _drop_all(self: Any) -> None:
    """A worker that is stopped and forgets what it holds, instead of releasing it."""
    self._stopping = True
    for run in tuple(self._slots.running.values()):
        run.cancel(Why.LOST)
    self._wake.set()


_settle = Worker._settle  # noqa: SLF001 - a bug is planted in it


async def _swallow(self: Any, batch: list[Run], request: LeaseRequest | None) -> None:
    """An error of the write that settles, taken for success."""
    retry = self._writing

    async def once(call: Any) -> Any:
        try:
            return await call()
        except StoreError:
            return Settled(tuple(Answer(run.item.id, Verdict.APPLIED) for run in batch), None)

    self._writing = once
    try:
        await _settle(self, batch, request)
    finally:
        self._writing = retry


async def _follow_up_ahead(self: Any, batch: list[Run], request: LeaseRequest | None) -> None:
    """Follow-ups in a write of their own, before the one that settles their parent."""
    for run in batch:
        if run.follow_ups:
            await self._writing(lambda ahead=run.follow_ups: self._store.put(ahead))
            run.follow_ups = ()
    await _settle(self, batch, request)


_take_back = Slots.take_back


def _take_back_under_old_number(self: Slots, item: Item) -> bool:
    """A lease that was taken back, without its new delivery number."""
    run = self.running.get(item.id) or self.settling.get(item.id)
    before = None if run is None else run.item
    taken = _take_back(self, item)
    if taken and run is not None and before is not None:
        run.item = before
    return taken


IN_ENGINE = {
    "keeper never extends": _in(Keeper, "keep", _keep_nothing, "abandoned"),
    "reaper never rescues": _in(Reaper, "reap", _reap_nothing, "stuck"),
    "reaper does not look again": _in(Reaper, "reap", _reap_by_force, "premature"),
    "refusal taken for success": _in(report, "end_event", _believed, "double_terminal"),
    "unknown put under a new id": _in(Client, "_write", _put_under_new_ids, "unexpected"),
    "unknown lease with a new nonce": _in(Worker, "_lease", _lease_with_new_nonces, "abandoned"),
    "crash not charged": _in(Reaper, "verdict", _uncharged, "wrong_attempts"),
    "retry without backoff": _in(Worker, "_settlement", _at_once, "early"),
    "stop without release": _in(Worker, "_halt", _drop_all, "unreleased"),
    "settle error swallowed": _in(Worker, "_settle", _swallow, "unexplained_duplicates"),
    "follow-ups written ahead": _in(Worker, "_settle", _follow_up_ahead, "unexpected"),
    "taken back, old number": _in(Slots, "take_back", _take_back_under_old_number, "abandoned"),
}

IN_STORE = {
    "forgetful": Plant("lost", plant.Forgetful),
    "silent": Plant("unexplained_duplicates", plant.Silent),
    "childless": Plant("lost", plant.Childless),
    "shameless": Plant("wrong_attempts", plant.Shameless),
    "tactful": Plant("half_moved", plant.Tactful),
    "optimist": Plant("double_terminal", plant.Optimist),
    "skewed": Plant("early", plant.Skewed),
    "unfenced": Plant("double_terminal", plant.Unfenced),
    "hasty": Plant("premature", plant.Hasty),
}

PLANTS = {**IN_ENGINE, **IN_STORE}
