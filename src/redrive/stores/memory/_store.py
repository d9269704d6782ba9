"""The reference store: the contract of stores.base in its plainest form, and the model the engines are compared with.

Verbs plan on frozen values first and write afterwards, so a verb that raises has changed nothing. One lock around each
verb makes it atomic for loops in several threads; nothing is awaited while it is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from msgspec import UNSET

from redrive.core.decide import ToCancelled, ToDead
from redrive.core.item import History, Instant, Item, Millis, NewItem
from redrive.core.select import Ids, Selection
from redrive.core.states import State
from redrive.core.verbs import (
    Act,
    Amended,
    Answer,
    CauseTally,
    Change,
    Checkup,
    Extended,
    Gate,
    GateWrite,
    Held,
    IdPage,
    LeaseRequest,
    Leases,
    Page,
    PutResult,
    QueueChange,
    QueueSettings,
    RouteTally,
    Settled,
    Settlement,
    Swept,
    Tally,
    Tombstone,
    Verdict,
    changed,
)
from redrive.errors import Conflict, NotFound
from redrive.stores import audit
from redrive.stores.base import IDS_LIMIT, PAGE_LIMIT
from redrive.stores.checks import (
    check_act,
    check_amend,
    check_capacity,
    check_change,
    check_follow_ups,
    check_gate,
    check_letter_settlements,
    check_letters,
    check_new,
    check_not_within,
    check_page,
    check_route,
)
from redrive.stores.clock import Clock
from redrive.stores.imports import check_imports, prepared
from redrive.stores.memory import _checkup, _moves, _pages
from redrive.stores.memory._acts import Acts
from redrive.stores.memory._beside import Beside
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._in_place import InPlace
from redrive.stores.memory._lane import Lane
from redrive.stores.memory._leasing import Leasing
from redrive.stores.memory._limits import Limits
from redrive.stores.memory._putting import Putting
from redrive.stores.memory._sweep import Broom, resolved
from redrive.stores.memory._table import Table


class MemoryStore(Beside):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._tombstones: dict[str, Tombstone] = {}
        self._capacities: dict[str, int] = {}
        self._table = Table(self._wake)
        self._bonds = Bonds(self._table, self._tombstones)
        self._limits = Limits()
        self._acts = Acts(self._table, self._bonds, self._tombstones)
        self._putting = Putting(self._table, self._bonds, self._tombstones)
        self._in_place = InPlace(self._table, self._bonds, self._putting)
        self._leasing = Leasing(self._table, self._limits)
        self._broom = Broom(self._table, self._bonds, self._tombstones, self._audit)

    # --- the way of an item ---

    async def put(self, items: Sequence[NewItem], within: object | None = None) -> PutResult:
        check_not_within(within, "memory")
        async with self._verb() as now:
            check_new(items)
            return self._putting.put(items, now)

    async def lease(self, request: LeaseRequest) -> Leases:
        async with self._verb() as now:
            return self._leasing.lease(request, now)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        async with self._verb() as now:
            for settlement in settlements:
                if settlement.follow_ups:
                    check_follow_ups(settlement.follow_ups)
            moved: list[tuple[Item, Item]] = []
            answers = [self._settle(settlement, moved, now) for settlement in settlements]
            self._bonds.give_keys_back(moved, now)
            for settlement, answer in zip(settlements, answers, strict=True):
                # With a reason it was cancelled instead.
                if settlement.follow_ups and answer.verdict is Verdict.APPLIED and not answer.reason:
                    self._putting.put(settlement.follow_ups, now, bounded=False)
            self._bonds.ended(moved, now)
            return Settled(tuple(answers), None if then is None else self._leasing.lease(then, now))

    def _settle(self, settlement: Settlement, moved: list[tuple[Item, Item]], now: Instant) -> Answer:
        item = self._table.items.get(settlement.id)
        if item is None:
            return Answer(settlement.id, Verdict.REFUSED, "no such item")
        if item.deliveries != settlement.delivery:
            reason = f"lease was given away: delivery {item.deliveries} is current"
            return Answer(item.id, Verdict.REFUSED, reason)
        if item.state is not State.LEASED:
            return Answer(item.id, Verdict.ALREADY)
        decision = settlement.decision
        room = not isinstance(decision, ToDead) or self._has_room(decision.route)
        after = _moves.settled(item, decision, now, room=room)
        self._table.save(after)
        moved.append((item, after))
        if settlement.attempt is not None:
            self._table.add_attempt(item.id, settlement.attempt)
        if after.state is State.CANCELLED and not isinstance(decision, ToCancelled):
            return Answer(item.id, Verdict.APPLIED, "cancelled")
        return Answer(item.id, Verdict.APPLIED if room else Verdict.KEPT)

    def _has_room(self, route: str) -> bool:
        capacity = self._capacities.get(route)
        return capacity is None or self._table.routes[route] < capacity

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        async with self._verb() as now:
            lost = tuple([one.id for one in held if not self._extend(one, now, now + ttl)])
            asked = tuple([one.id for one in held if one.id not in lost and self._table.items[one.id].cancel])
            return Extended(lost, asked)

    def _extend(self, held: Held, now: Instant, until: Instant) -> bool:
        item = self._table.items.get(held.id)
        if item is None or item.deliveries != held.delivery or item.lease_until is None or item.lease_until <= now:
            return False
        if not item.worker:
            return False
        if until > item.lease_until:
            self._table.save(_moves.extended(item, until))
        return True

    async def reclaim(
        self,
        worker: str,  # noqa: ARG002 - the fence is the delivery number; the item goes on naming the worker that lost it
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        async with self._verb() as now:
            lanes = [self._table.lanes[queue] for queue in dict.fromkeys(queues) if queue in self._table.lanes]
            wanted = None if ids is None else frozenset(ids)
            slots = [slot for lane in lanes for slot in lane.leased.until(None if force else now)]
            chosen = nsmallest(max(0, limit), (slot for slot in slots if wanted is None or slot.id in wanted))
            items = [_moves.reclaimed(self._table.items[slot.id], ttl, now) for slot in chosen]
            for item in items:
                self._table.save(item)
            return tuple(items)

    # --- letters, where they lie ---

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False
    ) -> tuple[Item, ...]:
        check_letters(ids, worker, ttl)
        async with self._verb() as now:
            return self._in_place.lease(ids, worker, ttl, now, early=early)

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        check_letter_settlements(settlements)
        async with self._verb() as now:
            answers = self._in_place.settle(settlements, now)
            for one, answer in zip(settlements, answers, strict=True):
                if one.audit is not None and answer.verdict is Verdict.APPLIED:
                    self._journal.append(one.audit, now)
            return answers

    # --- acts ---

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        check_amend(change, by)
        async with self._verb() as now:
            matching = _pages.meant(self._table, selection, now)
            if expect is not None and len(matching) != expect:
                raise Conflict(
                    f"{len(matching)} items match, not {expect}; nothing was changed",
                    hint="look again at what the selection finds, then repeat with the new number",
                )
            if isinstance(selection, Ids):
                ids = tuple(dict.fromkeys(selection.ids))
            else:
                ids = tuple(item.id for item in matching[:PAGE_LIMIT])
            result = self._acts.judge(ids, change, by, now)
            self._audit(audit.AuditRecord(audit.word(change), selection, result.changed, change), by, now)
            self._acts.change(result.changed, change, by, now)
            return result

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        check_act(by)
        check_imports(histories)
        async with self._verb() as now:
            result = self._acts.take_in(prepared(histories, now), by, now)
            self._audit(audit.AuditRecord(audit.IMPORT, Ids(result.added), result.added), by, now)
            return result

    def _audit(self, record: audit.AuditRecord, by: Act, now: Instant) -> None:
        if record.changed:
            self._journal.append(audit.entry(record, by), now)

    # --- looking ---

    async def get(self, item_id: str) -> History:
        async with self._verb():
            item = self._table.items.get(item_id)
            if item is None:
                pruned = item_id in self._tombstones
                raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
            return self._table.history(item, self._bonds.blocked_by(item))

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        async with self._verb() as now:
            check_page(limit)
            return _pages.page(self._table, _pages.Asked(selection, limit, cursor, oldest), now)

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        async with self._verb() as now:
            check_page(limit, IDS_LIMIT)
            page = _pages.page(self._table, _pages.Asked(selection, limit, cursor, oldest), now)
            return IdPage(tuple([item.id for item in page.items]), page.next)

    async def tally(self) -> Tally:
        async with self._verb() as now:
            lanes = tuple(lane.tally(now) for _, lane in sorted(self._table.lanes.items()))
            open_letters, capacities = +self._table.routes, self._capacities
            routes = [
                RouteTally(route, open_letters[route], capacities.get(route))
                for route in sorted(open_letters.keys() | capacities.keys())
            ]
            return Tally(now, lanes, tuple(routes))

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        async with self._verb():
            return tuple(self._table.causes(queue)[: max(0, limit)])

    # --- keeping house ---

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        check_act(by)
        async with self._verb() as now:
            matching = [item for item in _pages.meant(self._table, selection, now) if resolved(item)]
            doomed = nsmallest(max(0, limit), matching, key=lambda item: item.seq)
            return self._broom.remove(doomed, selection, by, now)

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        check_act(by)
        check_page(limit)
        async with self._verb() as now:
            return self._broom.sweep(limit, by, cursor, now)

    async def tombstone(self, item_id: str) -> Tombstone | None:
        async with self._verb():
            return self._tombstones.get(item_id)

    # --- settings ---

    async def configure(self, queue: str, change: QueueChange) -> None:
        check_change(queue, change)
        async with self._verb():
            fill = self._table.lanes[queue].fill if queue in self._table.lanes else 0
            if change.capacity is not UNSET and change.capacity is not None:
                check_capacity(queue, change.capacity, fill)
            lane = self._table.declare(queue)
            self._adopt(lane, changed(lane.settings, change))
            if change.paused is not None:
                lane.paused = change.paused
                lane.paused_by, lane.paused_reason = (change.by, change.reason) if change.paused else ("", "")
            self._wake(queue)

    def _adopt(self, lane: Lane, settings: QueueSettings) -> None:
        before, lane.settings = lane.settings, settings
        if settings.rate != before.rate:
            lane.rate_at = 0
        if settings.max_per_key != before.max_per_key:
            for item_id in self._table.set_aside(lane.name):
                self._bonds.let_go(item_id)

    async def configure_route(self, route: str, capacity: int | None) -> None:
        check_route(route, capacity)
        async with self._verb():
            if capacity is None:
                self._capacities.pop(route, None)
                return
            check_capacity(route, capacity, self._table.routes[route])
            self._capacities[route] = capacity

    async def settings(self, queue: str) -> QueueSettings:
        async with self._verb():
            lane = self._table.lanes.get(queue)
            return QueueSettings() if lane is None else lane.settings

    async def set_gate(self, write: GateWrite) -> Gate:
        check_gate(write)
        async with self._verb() as now:
            gate = self._limits.set_gate(write, now)
            for lane in self._table.lanes.values():
                if lane.settings.gate == gate.name:
                    self._wake(lane.name)
            return gate

    async def gates(self) -> tuple[Gate, ...]:
        async with self._verb():
            return tuple(gate for _, gate in sorted(self._limits.gates.items()))

    async def gate(self, name: str) -> Gate | None:
        async with self._verb():
            return self._limits.gates.get(name)

    async def wait(self, queues: Sequence[str], timeout: Millis) -> None:
        async with self._verb() as now:
            # Under the lock: what comes after this look finds the waiter registered.
            waiter = self._waiters.add(queues)
            lanes = (self._table.lanes[queue] for queue in waiter.queues if queue in self._table.lanes)
            times = (self._limits.next_change(lane) for lane in lanes)
            patience = min([timeout, *(when - now for when in times if when is not None)])
        try:
            if patience > 0:
                await self._clock.wait(waiter.event, patience)
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    async def check(self, *, quick: bool = False) -> Checkup:  # noqa: ARG002 - nothing here takes long to read
        async with self._verb():
            return Checkup(len(self._table.items), _checkup.findings(self._table, self._bonds))
