"""Who gets what: due order, suspects alone, and the same answer to the same nonce."""

from __future__ import annotations

from typing import NamedTuple

from redrive.core.item import Instant, Item
from redrive.core.states import State
from redrive.core.verbs import Held, LeaseRequest, Leases, Want
from redrive.stores.memory import _moves
from redrive.stores.memory._agenda import Slot
from redrive.stores.memory._table import Lane, Table


class _Given(NamedTuple):
    nonce: str
    held: tuple[Held, ...]


class Leasing:
    def __init__(self, table: Table) -> None:
        self._table = table
        self._given: dict[str, _Given] = {}
        self._alone: dict[str, Held] = {}

    def lease(self, request: LeaseRequest, now: Instant) -> Leases:
        last = self._given.get(request.worker)
        if last is not None and last.nonce == request.nonce:
            return Leases(tuple(item for held in last.held if (item := self._current(held)) is not None))
        leases = Leases() if self._holds_a_suspect(request.worker) else self._give(request, now)
        given = tuple(Held(item.id, item.deliveries) for item in leases.items)
        self._given[request.worker] = _Given(request.nonce, given)
        return leases

    def _current(self, held: Held) -> Item | None:
        item = self._table.items.get(held.id)
        if item is None or item.state is not State.LEASED or item.deliveries != held.delivery:
            return None
        return item

    def _holds_a_suspect(self, worker: str) -> bool:
        """Not even a worker's own mistake may put a neighbour beside a suspect."""
        held = self._alone.get(worker)
        if held is None:
            return False
        if self._current(held) is not None:
            return True
        del self._alone[worker]
        return False

    def _give(self, request: LeaseRequest, now: Instant) -> Leases:
        suspect = self._first_suspect(request.wants, now)
        if suspect is None:
            return Leases(self._plain(request, now))
        if request.holding > 0:
            return Leases(self._plain(request, now), suspects_due=True)
        slot, want = suspect
        item = self._hand_over(slot, want, request.worker, now, alone=True)
        self._alone[request.worker] = Held(item.id, item.deliveries)
        return Leases((item,))

    def _first_suspect(self, wants: tuple[Want, ...], now: Instant) -> tuple[Slot, Want] | None:
        for want in wants:
            lane = self._open_lane(want)
            slot = None if lane is None else lane.first_ready(crashes_from=want.max_crashes - 1)
            if slot is not None and slot.when <= now:
                return slot, want
        return None

    def _plain(self, request: LeaseRequest, now: Instant) -> tuple[Item, ...]:
        items: list[Item] = []
        for want in request.wants:
            lane = self._open_lane(want)
            if lane is None:
                continue
            for _ in range(want.limit):
                slot = lane.first_ready(crashes_below=want.max_crashes - 1)
                if slot is None or slot.when > now:
                    break
                items.append(self._hand_over(slot, want, request.worker, now, alone=False))
        return tuple(items)

    def _open_lane(self, want: Want) -> Lane | None:
        lane = self._table.lanes.get(want.queue)
        return None if lane is None or lane.paused or want.limit <= 0 else lane

    def _hand_over(self, slot: Slot, want: Want, worker: str, now: Instant, *, alone: bool) -> Item:
        item = _moves.leased(self._table.items[slot.id], worker, want.ttl, now, alone=alone)
        self._table.save(item)
        return item
