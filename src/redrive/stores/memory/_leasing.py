"""Who gets what: due order, suspects alone, within all limits, and the same answer to the same nonce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import structs

from redrive.core import lanes
from redrive.core.item import Instant, Item
from redrive.core.states import State
from redrive.core.verbs import Held, LeaseRequest, Leases, Want
from redrive.stores.memory import _moves
from redrive.stores.memory._agenda import Slot
from redrive.stores.memory._lane import Lane
from redrive.stores.memory._limits import Limits, Room
from redrive.stores.memory._table import Table, limit_key

MOST_ASIDE = 1_000
"""So many are set aside in one call: it ends, however many of one limit key wait."""


class _Given(NamedTuple):
    nonce: str
    held: tuple[Held, ...]


class Leasing:
    def __init__(self, table: Table, limits: Limits) -> None:
        self._table = table
        self._limits = limits
        self._given: dict[tuple[str, int], _Given] = {}
        self._alone: dict[str, Held] = {}
        self._aside = 0

    def lease(self, request: LeaseRequest, now: Instant) -> Leases:
        last = self._given.get((request.worker, request.lane))
        if last is not None and last.nonce == request.nonce:
            return Leases(tuple(item for held in last.held if (item := self._current(held)) is not None))
        self._aside = 0
        leases = Leases() if self._holds_a_suspect(request.worker) else self._give(request, now)
        given = tuple(Held(item.id, item.deliveries) for item in leases.items)
        self._given[request.worker, request.lane] = _Given(request.nonce, given)
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
        item, want = suspect
        item = self._hand_over(item, want, request.worker, now, alone=True)
        self._limits.spend(self._table.lanes[item.queue], 0, 1, now)
        self._alone[request.worker] = Held(item.id, item.deliveries)
        return Leases((item,))

    def _first_suspect(self, wants: tuple[Want, ...], now: Instant) -> tuple[Item, Want] | None:
        for want, lane, room in self._open(wants, now):
            while room.retries and self._aside < MOST_ASIDE:
                slot = lane.first_ready(crashes_from=want.max_crashes - 1)
                if slot is None or slot.when > now:
                    break
                item = self._table.items[slot.id]
                if not self._set_aside(item, lane):
                    return item, want
        return None

    def _open(self, wants: tuple[Want, ...], now: Instant) -> Iterator[tuple[Want, Lane, Room]]:
        for want in wants:
            lane = self._table.lanes.get(want.queue)
            if lane is None:
                continue
            room = self._limits.room(lane, want.limit, now)
            if room.limit:
                yield want, lane, room

    def _plain(self, request: LeaseRequest, now: Instant) -> tuple[Item, ...]:
        items: list[Item] = []
        for want, lane, room in self._open(request.wants, now):
            if lane.is_plain and want.max_crashes > 1:
                given, retries = self._first(lane, want, room.limit, request.worker, now), 0
            else:
                given = self._from(lane, want, room, request.worker, now)
                retries = sum(lanes.is_retry(lanes.level_of(item)) for item in given)
            self._limits.spend(lane, len(given) - retries, retries, now)
            items.extend(given)
        return tuple(items)

    def _first(self, lane: Lane, want: Want, limit: int, worker: str, now: Instant) -> list[Item]:
        """Where all is alike there is nothing to choose."""
        given: list[Item] = []
        while len(given) < limit:
            slot = lane.first_ready()
            if slot is None or slot.when > now:
                break
            given.append(self._hand_over(self._table.items[slot.id], want, worker, now, alone=False))
        return given

    def _from(self, lane: Lane, want: Want, room: Room, worker: str, now: Instant) -> list[Item]:
        """In rounds: where some of those chosen are set aside, others are chosen in their stead."""
        given: list[Item] = []
        retries = 0
        while len(given) < room.limit:
            asked = structs.replace(
                want,
                limit=room.limit - len(given),
                retries=None if want.retries is None else max(0, want.retries - retries),
                turn=want.turn + len(given),
            )
            aside = 0
            for slot in self._choose(lane, asked, room.retries - retries, now):
                item = self._table.items[slot.id]
                if self._set_aside(item, lane):
                    aside += 1
                    continue
                retries += lanes.is_retry(lanes.level_of(item))
                given.append(self._hand_over(item, want, worker, now, alone=False))
            if not aside or self._aside >= MOST_ASIDE:
                break
        return given

    @staticmethod
    def _choose(lane: Lane, want: Want, most_retries: int, now: Instant) -> list[Slot]:
        due = lane.due(now, want.limit, crashes_below=want.max_crashes - 1)
        waiting = {level: [(slot.when, slot.seq) for slot in slots] for level, slots in due.items()}
        levels = lanes.choose(waiting, want.limit, retries=want.retries, most_retries=most_retries, turn=want.turn)
        rows = {level: iter(slots) for level, slots in due.items()}
        return [next(rows[level]) for level in levels]

    def _set_aside(self, item: Item, lane: Lane) -> bool:
        """If so many of its limit key run: until one of them ends, nobody has to look at it."""
        most, key = lane.settings.max_per_key, limit_key(item)
        if most is None or not key[1] or self._table.running[key] < most:
            return False
        self._aside += 1
        self._table.save(structs.replace(item, hold="limit"))
        return True

    def _hand_over(self, item: Item, want: Want, worker: str, now: Instant, *, alone: bool) -> Item:
        item = _moves.leased(item, worker, want.ttl, now, alone=alone)
        self._table.save(item)
        return item
