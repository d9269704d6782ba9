"""The reference store: the contract of stores.base in its plainest form, and the model the engines are compared with.

Verbs plan on frozen values first and write afterwards, so a verb that raises has changed nothing. One lock around each
verb makes it atomic for loops in several threads; nothing is awaited while it is held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest

from msgspec import UNSET, structs

from redrive.core.acts import (
    Act,
    Amended,
    Change,
    Edit,
)
from redrive.core.decide import ToCancelled, ToDead
from redrive.core.families import family_of, is_family, member_settings
from redrive.core.item import History, Instant, Item, Millis, NewItem, payloads_of
from redrive.core.select import Ids, Selection
from redrive.core.states import State
from redrive.core.verbs import (
    Answer,
    CauseTally,
    Checkup,
    Extended,
    Gate,
    GateWrite,
    Held,
    IdPage,
    LeaseRequest,
    Leases,
    LetterChange,
    NewEntry,
    Page,
    PutResult,
    QueueChange,
    QueueSettings,
    Reencrypted,
    RouteTally,
    Settled,
    Settlement,
    Swept,
    Tally,
    Tombstone,
    Verdict,
    changed,
)
from redrive.errors import Conflict, NotFound, StoreError
from redrive.stores import audit, packing, reencrypting
from redrive.stores.base import IDS_LIMIT, PAGE_LIMIT
from redrive.stores.bodies import Usable
from redrive.stores.checks import (
    check_act,
    check_amend,
    check_capacity,
    check_change,
    check_entries,
    check_follow_ups,
    check_gate,
    check_lease,
    check_letter_settlements,
    check_letters,
    check_new,
    check_not_within,
    check_page,
    check_queues,
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
from redrive.stores.memory._putting import Putting, check_ends, check_sealed
from redrive.stores.memory._sweep import Broom, resolved
from redrive.stores.memory._table import Table
from redrive.stores.reencrypting import Rewrite


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

    def _wake(self, queue: str) -> None:
        self._table.look_at(queue)
        super()._wake(queue)

    # --- the way of an item ---

    async def put(
        self, items: Sequence[NewItem], within: object | None = None, *, audit: NewEntry | None = None
    ) -> PutResult:
        check_not_within(within, "memory")
        check_new(items)
        check_entries((audit,))

        async def write(packed: Sequence[NewItem]) -> PutResult:
            async with self._verb() as now:
                result = self._putting.put(packed, now)
                self._append(audit if result.added else None, now)
                return result

        return await self._bodies.write(self, lambda: self._bodies.items(items), write)

    async def lease(self, request: LeaseRequest) -> Leases:
        check_lease(request)
        async with self._verb() as now:
            leases = self._leasing.lease(request, now)
        return await self._given(leases)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            if settlement.follow_ups:
                check_follow_ups(settlement.follow_ups)
        if then is not None:
            check_lease(then)
        settled = await self._bodies.write(
            self, lambda: self._bodies.settlements(settlements), lambda packed: self._settle_all(packed, then)
        )
        if settled.leases is None:
            return settled
        return Settled(settled.answers, await self._given(settled.leases))

    async def _given(self, leases: Leases) -> Leases:
        usable = await self._usable(leases.items)
        return Leases(usable.items, leases.suspects_due, usable.locked, leases.more)

    async def _usable(self, items: tuple[Item, ...], *, lapsed: bool = False) -> Usable:
        """Of what was leased. One that does not decrypt becomes a letter."""
        if not packing.any_packed(items):
            return Usable(items)
        usable = await self._bodies.usable([(item, None) for item in items], lapsed=lapsed)
        if usable.ends:
            # If this fails, their leases lapse, and whoever reclaims them comes by here again.
            with contextlib.suppress(StoreError):
                await self._settle_all(usable.ends, None)
        return usable

    async def _settle_all(self, settlements: Sequence[Settlement], then: LeaseRequest | None) -> Settled:
        async with self._verb() as now:
            check_ends(self._table, settlements)
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
            self._table.save(_moves.extended(item, until), is_change=False)
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
            members = (lane.name for queue in queues if is_family(queue) for lane in self._table.members(queue))
            lanes = [
                self._table.lanes[name] for name in dict.fromkeys((*queues, *members)) if name in self._table.lanes
            ]
            wanted = None if ids is None else frozenset(ids)
            slots = [slot for lane in lanes for slot in lane.leased.until(None if force else now)]
            chosen = nsmallest(max(0, limit), (slot for slot in slots if wanted is None or slot.id in wanted))
            items = [_moves.reclaimed(self._table.items[slot.id], ttl, now) for slot in chosen]
            for item in items:
                self._table.save(item)
        return (await self._usable(tuple(items), lapsed=True)).items

    # --- letters, where they lie ---

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        check_letters(ids, worker, ttl)
        async with self._verb() as now:
            given = self._in_place.lease(ids, worker, ttl, now, early=early, reserved=reserved)
        return await self._bodies.whole(given)

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        check_letter_settlements(settlements)
        return await self._bodies.write(self, lambda: self._bodies.settlements(settlements), self._settle_letters)

    async def _settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        async with self._verb() as now:
            check_ends(self._table, settlements)
            answers = self._in_place.settle(settlements, now)
            for one, answer in zip(settlements, answers, strict=True):
                if answer.verdict is Verdict.APPLIED:
                    self._append(one.audit, now)
            return answers

    # --- acts ---

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        check_amend(change, by)
        return await self._bodies.edit(
            self, selection, change, lambda packed: self._amend(selection, packed, by, expect)
        )

    async def _amend(self, selection: Selection, change: Change, by: Act, expect: int | None) -> Amended:
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
            if isinstance(change, Edit):
                for item_id in result.changed:
                    check_sealed(self._table, self._table.items[item_id].queue, change.payload)
            self._audit(audit.AuditRecord(audit.word(change), selection, result.changed, change), by, now)
            self._acts.change(result.changed, change, by, now)
            return result

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        check_act(by)
        check_imports(histories)
        return await self._bodies.write(
            self, lambda: self._bodies.histories(histories), lambda packed: self._take_in(packed, by)
        )

    async def _take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        async with self._verb() as now:
            for history in histories:
                for part in payloads_of(history):
                    check_sealed(self._table, history.item.queue, part.payload)
            result = self._acts.take_in(prepared(histories, now), by, now)
            self._audit(audit.AuditRecord(audit.IMPORT, Ids(result.added), result.added), by, now)
            return result

    def _audit(self, record: audit.AuditRecord, by: Act, now: Instant) -> None:
        if record.changed:
            self._append(audit.entry(record, by), now)

    # --- looking ---

    async def get(self, item_id: str) -> History:
        async with self._verb():
            item = self._table.items.get(item_id)
            if item is None:
                pruned = item_id in self._tombstones
                raise NotFound(f"no item {item_id!r}", hint="it was pruned; its tombstone is left" if pruned else "")
            history = self._table.history(item, self._bonds.blocked_by(item))
        return await self._bodies.whole_history(history)

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        await self._bodies.check_filter(selection, self.tally)
        async with self._verb() as now:
            check_page(limit)
            page = self._page(_pages.Asked(selection, limit, cursor, oldest), now)
        return structs.replace(page, items=await self._bodies.whole(page.items))

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        await self._bodies.check_filter(selection, self.tally)
        async with self._verb() as now:
            check_page(limit, IDS_LIMIT)
            page = self._page(_pages.Asked(selection, limit, cursor, oldest), now)
            return IdPage(tuple([item.id for item in page.items]), page.next)

    def _page(self, asked: _pages.Asked, now: Instant) -> Page:
        return _pages.page(self._table, asked, now, self._bodies.shown)

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        async with self._verb() as now:
            families = tuple(lane.tally(now) for _, lane in sorted(self._table.families.items()))
            named = () if isinstance(members, bool) else members
            shown = {
                name: lane
                for name, lane in self._table.lanes.items()
                if members is True or lane.family is None or name in named
            }
            lanes = tuple(lane.tally(now) for _, lane in sorted(shown.items()))
            if members is not True:
                lanes = tuple(sorted((*lanes, *families), key=lambda row: row.queue))
            open_letters, capacities = +self._table.routes, self._capacities
            routes = [
                RouteTally(route, open_letters[route], capacities.get(route))
                for route in sorted(open_letters.keys() | capacities.keys())
            ]
            return Tally(now, lanes, tuple(routes), families)

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        async with self._verb():
            return tuple(self._table.causes(queue)[: max(0, limit)])

    async def changes(self, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        check_page(limit)
        async with self._verb():
            changes = [self._table.last_change(*one) for one in self._table.changes.after(after, limit)]
        return await self._bodies.whole_changes(changes)

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

    async def reencrypt(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        queue: str | None = None,
        dry_run: bool = False,
        by: Act | None = None,
    ) -> Reencrypted:
        return await reencrypting.reencrypt(self, self._bodies, limit, cursor, queue, dry_run=dry_run, by=by)

    async def rewrite_bodies(self, rewrites: Sequence[Rewrite], by: Act | None) -> int:
        async with self._verb() as now:
            done: list[str] = []
            for one in rewrites:
                item = self._table.items.get(one.id)
                if one.revision is not None:
                    done += [one.id] * self._table.replace_revision(one.id, one.revision, one.old, one.new)
                elif item is not None and (item.payload if one.purpose == "payload" else item.result) == one.old:
                    self._table.save(structs.replace(item, **{one.purpose: one.new}))
                    done.append(one.id)
            if by is not None:
                self._audit(reencrypting.record_of(done), by, now)
            return len(done)

    async def tombstone(self, item_id: str) -> Tombstone | None:
        async with self._verb():
            return self._tombstones.get(item_id)

    # --- settings ---

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        check_change(queue, change)
        check_entries((audit,))
        async with self._verb() as now:
            there = self._table.families if is_family(queue) else self._table.lanes
            if change.capacity is not UNSET and change.capacity is not None:
                members = self._table.members(queue) if is_family(queue) else [there[queue]] if queue in there else []
                check_capacity(queue, change.capacity, sum([lane.fill for lane in members]))
            lane = self._table.declare_family(queue) if is_family(queue) else self._table.declare(queue)
            self._adopt(lane, changed(lane.own, change, member=bool(family_of(queue))))
            if change.paused is not None:
                lane.paused = change.paused
                lane.paused_by, lane.paused_reason = (change.by, change.reason) if change.paused else ("", "")
            lane.turns.lower_all()
            self._wake(queue)
            self._bodies.learn(queue, lane.settings)
            self._append(audit, now)

    def _adopt(self, lane: Lane, settings: QueueSettings) -> None:
        before, lane.own = lane.own, settings
        if settings.rate != before.rate:
            lane.rate_at = 0
        if settings.max_per_key != before.max_per_key:
            members = self._table.members(lane.name) if is_family(lane.name) else [lane]
            for item_id in [item_id for one in members for item_id in self._table.set_aside(one.name)]:
                self._bonds.let_go(item_id)

    async def configure_route(self, route: str, capacity: int | None, audit: NewEntry | None = None) -> None:
        check_route(route, capacity)
        check_entries((audit,))
        async with self._verb() as now:
            if capacity is None:
                self._capacities.pop(route, None)
            else:
                check_capacity(route, capacity, self._table.routes[route])
                self._capacities[route] = capacity
            self._append(audit, now)

    async def settings(self, queue: str) -> QueueSettings:
        async with self._verb():
            lane = self._table.families.get(queue) or self._table.lanes.get(queue)
            family = self._table.families.get(family_of(queue))
            own = QueueSettings() if lane is None else lane.own
            held = own if family is None else member_settings(queue, own, family.own)
            return self._bodies.learn(queue, held)

    async def set_gate(self, write: GateWrite, audit: NewEntry | None = None) -> Gate:
        check_gate(write)
        check_entries((audit,))
        async with self._verb() as now:
            gate = self._limits.set_gate(write, now)
            self._append(audit, now)
            for lane in self._table.behind(gate.name):
                lane.turns.lower_all()
                self._wake(lane.name)
            return gate

    async def gates(self) -> tuple[Gate, ...]:
        async with self._verb():
            return tuple(gate for _, gate in sorted(self._limits.gates.items()))

    async def gate(self, name: str) -> Gate | None:
        async with self._verb():
            return self._limits.gates.get(name)

    async def kinds(self, queue: str) -> tuple[str, ...]:
        async with self._verb() as now:
            lane = self._table.lanes.get(queue)
            due = [] if lane is None else [(each, agenda.first()) for (each, _), agenda in lane.ready.items()]
            return tuple(sorted({kind for kind, first in due if first is not None and first.when <= now}))

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        check_queues(queues)
        async with self._verb() as now:
            # Under the lock: what comes after this look finds the waiter registered.
            waiter = self._waiters.add(queues)
            times = [self._next_change(queue, now, (kinds or {}).get(queue)) for queue in waiter.queues]
            patience = min([timeout, *(when - now for when in times if when is not None)])
        try:
            if patience > 0:
                await self._clock.wait(waiter.event, patience)
        finally:
            with self._lock:
                self._waiters.remove(waiter)

    def _next_change(self, queue: str, now: Instant, kinds: tuple[str, ...] | None) -> Instant | None:
        """When something of a queue or family may be leased; None: not before a wake."""
        family = self._table.families.get(queue)
        lane = self._table.lanes.get(queue)
        whole = family if lane is None else lane.family
        if self._limits.whole(whole, 1) <= 0:
            return None
        if family is not None:
            if kinds is None:
                return family.turns.first(now)
            return family.turns.first_of(now, lambda name: self._limits.next_change(self._table.lanes[name], kinds))
        return None if lane is None else self._limits.next_change(lane, kinds)

    async def check(self, *, quick: bool = False) -> Checkup:  # noqa: ARG002 - nothing here takes long to read
        async with self._verb():
            return Checkup(len(self._table.items), _checkup.findings(self._table, self._bonds, self._limits))
