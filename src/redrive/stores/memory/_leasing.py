"""Who gets what: due order, suspects alone, within all limits, and the same answer to the same nonce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import structs

from redrive.core import lanes
from redrive.core.families import VISITS, is_family, look_again, portion
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
        self._more = False

    def lease(self, request: LeaseRequest, now: Instant) -> Leases:
        last = self._given.get((request.worker, request.lane))
        if last is not None and last.nonce == request.nonce:
            return Leases(tuple(item for held in last.held if (item := self._current(held)) is not None))
        self._aside = 0
        self._more = False
        if self._holds_a_suspect(request.worker):
            leases = Leases()
        else:
            leases = self._give_one(request, now) if request.item else self._give(request, now)
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
        suspect = self._first_suspect(self._members(request.wants, now), now)
        if suspect is None:
            return Leases(self._all(request, now), more=self._more)
        if request.holding > 0:
            return Leases(self._all(request, now), suspects_due=True, more=self._more)
        item, want = suspect
        item = self._hand_over(item, want, request.worker, now, alone=True)
        self._limits.spend(self._table.lanes[item.queue], 0, 1, now)
        self._look_again(self._table.lanes[item.queue], now)
        self._alone[request.worker] = Held(item.id, item.deliveries)
        return Leases((item,))

    def _give_one(self, request: LeaseRequest, now: Instant) -> Leases:
        """The item that was asked for by its id."""
        (want,) = request.wants
        item = self._table.items.get(request.item)
        if item is None or item.state is not State.READY or item.hold or item.queue != want.queue:
            return Leases()
        lane = self._table.lanes[item.queue]
        alone = item.crashes >= want.max_crashes - 1
        if alone and request.holding > 0:
            return Leases(suspects_due=True)
        if self._set_aside(item, lane):
            return Leases()
        retry = alone or lanes.is_retry(lanes.level_of(item))
        item = self._hand_over(item, want, request.worker, now, alone=alone)
        self._limits.spend(lane, int(not retry), int(retry), now)
        if alone:
            self._alone[request.worker] = Held(item.id, item.deliveries)
        return Leases((item,))

    def _first_suspect(self, wants: tuple[Want, ...], now: Instant) -> tuple[Item, Want] | None:
        for want, lane, room in self._open(wants, now):
            while room.retries and self._aside < MOST_ASIDE:
                slot = lane.first_ready(want.max_crashes - 1, kinds=want.kinds)
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

    def _all(self, request: LeaseRequest, now: Instant) -> tuple[Item, ...]:
        items: list[Item] = []
        for want in request.wants:
            give = self._family if is_family(want.queue) else self._plain
            items += give(want, request.worker, now)
        return tuple(items)

    # --- families ---

    def _members(self, wants: tuple[Want, ...], now: Instant) -> tuple[Want, ...]:
        """The wants, with one for each member whose turn it is in place of that of its family."""
        return tuple(
            structs.replace(want, queue=name)
            for want in wants
            for name in (self._turns(want, now) if is_family(want.queue) else (want.queue,))
        )

    def _turns(self, want: Want, now: Instant) -> list[str]:
        family = self._table.declare_family(want.queue)
        return family.turns.due(now) if self._limits.whole(family, want.limit) > 0 else []

    def _family(self, want: Want, worker: str, now: Instant) -> tuple[Item, ...]:
        """An equal portion for each member whose turn it is; what is left for those that have more."""
        members = self._turns(want, now)
        is_full = len(members) >= VISITS
        limit = self._limits.whole(self._table.families[want.queue], want.limit)
        items: list[Item] = []
        while members and len(items) < limit:
            share = portion(limit - len(items), len(members))
            have_more: list[str] = []
            for member in members:
                left = limit - len(items)
                if left <= 0:
                    break
                retries = sum(lanes.is_retry(lanes.level_of(item)) for item in items)
                asked = structs.replace(
                    want,
                    queue=member,
                    limit=min(share, left),
                    retries=None if want.retries is None else max(0, want.retries - retries),
                    turn=want.turn + len(items),
                )
                given = self._plain(asked, worker, now)
                items += given
                when = self._look_again(self._table.lanes[member], now)
                if when is None or when > now:
                    self._more |= is_full
                elif given:
                    have_more.append(member)
            members = have_more
        return tuple(items)

    def _look_again(self, lane: Lane, now: Instant) -> Instant | None:
        """After a lease looked at a member."""
        if lane.family is None:
            return None
        shared = self._limits.shares_budget(lane)
        when = look_again(self._limits.next_change(lane), now, shared_budget=shared)
        lane.family.turns.look_at(lane.name, when, now)
        return when

    # --- the others ---

    def _plain(self, asked: Want, worker: str, now: Instant) -> tuple[Item, ...]:
        items: list[Item] = []
        for want, lane, room in self._open((asked,), now):
            if lane.is_plain and want.max_crashes > 1 and (want.kinds is None or "" in want.kinds):
                given, retries = self._first(lane, want, room.limit, worker, now), 0
            else:
                given = self._from(lane, want, room, worker, now)
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
        due = lane.due(now, want.limit, want.max_crashes - 1, want.kinds)
        if due.keys() <= {0}:
            return due.get(0, [])
        waiting = {level: [(slot.when, slot.seq) for slot in slots] for level, slots in due.items()}
        levels = lanes.choose(
            waiting,
            want.limit,
            retries=want.retries,
            most_retries=most_retries,
            turn=want.turn,
            share=want.share,
        )
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
