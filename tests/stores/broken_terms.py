"""Planted bugs about items that are bound to others, and about limits: each the memory store with one thing bent.

Peers that have the bug are named.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from msgspec import structs

from redrive.core import lanes
from redrive.core.acts import (
    Act,
    Amended,
    Cancel,
    Change,
    Replay,
)
from redrive.core.decide import ToDead
from redrive.core.item import Instant, Item, NewItem
from redrive.core.select import Selection
from redrive.core.states import State
from redrive.core.verbs import (
    Gate,
    GateWrite,
    LeaseRequest,
    Leases,
    PutResult,
    Settled,
    Settlement,
    Swept,
    Want,
)
from redrive.stores.clock import Clock
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._dedupe import Keys
from redrive.stores.memory._lane import Lane
from redrive.stores.memory._limits import NO_LIMIT, Limits, Room
from tests.stores.broken import Bent

# ruff: noqa: SLF001 - the bugs reach where no verb does


class BentBonds(Bent):
    """With bonds of another kind; those who refer to the right ones are told."""

    kind: type[Bonds] = Bonds

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bonds = self.kind(self._table, self._tombstones)
        self._acts._bonds = self._bonds
        self._putting._bonds = self._bonds
        self._broom._bonds = self._bonds


class BentLimits(Bent):
    kind: type[Limits] = Limits

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._limits = self._leasing._limits = self.kind()


# --- order ---


class DeadHeadsAreForgotten(BentBonds):
    """SQS FIFO, Azure: the dead-letter queue takes the head away and the others overtake it unmarked."""

    class kind(Bonds):  # noqa: N801 - a value of the class
        def _end_of_head(self, item: Item) -> None:
            self.next_head(item)


class ReplaysToTheTail(BentBonds):
    """A letter that blocked its key comes back behind those that waited for it."""

    class kind(Bonds):  # noqa: N801
        def replayed(self, item: Item, now: Instant, *, force: bool) -> None:
            if self._lines.is_head(item):
                self.next_head(item)
            super().replayed(item, now, force=force)


class ReplaysBehindThoseWhoWait(BentBonds):
    """A letter that was passed by goes to the tail, behind the head that waits for it."""

    class kind(Bonds):  # noqa: N801
        def replayed(self, item: Item, now: Instant, *, force: bool) -> None:
            self._awaited.discard(item.id)
            super().replayed(item, now, force=force)


class NeverGivesWay(BentBonds):
    """The head of a key stays the head, also while it waits for one behind it."""

    class kind(Bonds):  # noqa: N801
        def _give_way(self, item: Item) -> None:
            """Not at all."""


class WaitsForTheCancelled(BentBonds):
    """Whoever waits for what can never be done is taken in, and waits for ever."""

    class kind(Bonds):  # noqa: N801
        def hopeless(self, item_id: str) -> bool:
            return False


class ForgetsTheGap(BentBonds):
    class kind(Bonds):  # noqa: N801
        def next_head(self, head: Item, gap: str = "") -> None:
            super().next_head(head)


class RetriesLetOthersPass(Bent):
    """An item that failed makes place for the next of its key until it is due."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements)
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is not None and item.state is State.READY and item.errors:
                self._bonds.next_head(item)
        return settled if then is None else Settled(settled.answers, await super().lease(then))


class NeverParks(BentBonds):
    class kind(Bonds):  # noqa: N801
        def _turn(self, head: Item, status: str) -> None:
            super()._turn(head, "blocked" if status == "parked" else status)  # type: ignore[arg-type]


# --- dedupe ---


class LettersHoldTheirKeys(BentBonds):
    """Oban, BullMQ: a failed job with the key keeps new work out, in silence."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)

        class Tight(Keys):
            def release(self, item: Item, now: Instant) -> None:
                if item.state is not State.DEAD:
                    super().release(item, now)

        self._bonds.keys = Tight()


class TwinsOverwrite(Bent):
    """BullMQ `replace`: the newcomer takes the place of whoever waits."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        result = await super().put(items, within)
        for duplicate in result.duplicates:
            holder = self.peek(duplicate.of)
            if holder is not None and holder.state is State.READY:
                self.force(structs.replace(holder, payload=b"replaced", due_at=self.now() + 1))
        return result


class ReplaysBesideATwin(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        bent = structs.replace(change, force=True) if isinstance(change, Replay) else change
        return await super().amend(selection, bent, by, expect)


class ForgetsTheWindow(Bent):
    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        return await super().put([self._without(item) for item in items], within)

    @staticmethod
    def _without(item: NewItem) -> NewItem:
        if item.terms is None or item.terms.dedupe is None:
            return item
        dedupe = structs.replace(item.terms.dedupe, window=None)
        return structs.replace(item, terms=structs.replace(item.terms, dedupe=dedupe))


# --- dependencies ---


class DeathSetsFree(BentBonds):
    """Celery chords, RQ with allow_failure: whoever waited for the dead one runs as if it had succeeded."""

    class kind(Bonds):  # noqa: N801
        def ended(self, moved: Sequence[tuple[Item, Item]], now: Instant, passed: Container[str] = ()) -> None:
            super().ended(moved, now, passed)
            for _, item in moved:
                for waiting in self.edges.fulfil(item.id) if item.state is State.DEAD else ():
                    self._release(waiting)


class DeathStopsAtTheChildren(BentBonds):
    class kind(Bonds):  # noqa: N801
        def _doom(self, doomed: list[Item], now: Instant) -> list[Item]:
            keep = self._dying_with
            self._dying_with = lambda item: []  # type: ignore[method-assign]
            try:
                return super()._doom(doomed, now)
            finally:
                self._dying_with = keep  # type: ignore[method-assign]


class WaitsForWhatIsDone(BentBonds):
    """Looks only at what lives: who waits for one that was done before waits for ever."""

    class kind(Bonds):  # noqa: N801
        def _fate(self, item_id: str) -> State | None:
            return State.READY if super()._fate(item_id) is not None else None


class AnyIsEnough(BentBonds):
    """One of those that it waits for is done: that will do."""

    class kind(Bonds):  # noqa: N801
        def ended(self, moved: Sequence[tuple[Item, Item]], now: Instant, passed: Container[str] = ()) -> None:
            for _, item in moved:
                for waiting in sorted(self.edges.waiting.get(item.id, ())) if item.state is State.DONE else ():
                    self.edges.missing[waiting] = {item.id}
            super().ended(moved, now, passed)


# --- limits ---


class LimitsByRequest(BentLimits):
    """Dramatiq, arq: each worker counts for itself."""

    class kind(Limits):  # noqa: N801
        def room(self, lane: Lane, want: int, now: Instant) -> Room:
            settings = lane.own
            lane.own = structs.replace(settings, max_running=None)
            try:
                room = super().room(lane, want, now)
            finally:
                lane.own = settings
            most = settings.max_running
            return room if most is None else Room(min(room.limit, most), room.retries)


class SpendsNothing(BentLimits):
    class kind(Limits):  # noqa: N801
        def spend(self, lane: Lane, firsts: int, retries: int, now: Instant) -> None:
            """The meters stand still."""


class NoBudgetForRetries(BentLimits):
    """Retries come as they like while the dependency is down."""

    class kind(Limits):  # noqa: N801
        def room(self, lane: Lane, want: int, now: Instant) -> Room:
            return Room(super().room(lane, want, now).limit, NO_LIMIT)


class GatesByTheLastWriter(BentLimits):
    class kind(Limits):  # noqa: N801
        def set_gate(self, write: GateWrite, now: Instant) -> Gate:
            gate = self.gates.get(write.name)
            version = 0 if gate is None else gate.version
            return super().set_gate(structs.replace(write, expect=version), now)


class LeavesThemAside(BentBonds):
    """A place is free, and nobody tells those who were set aside."""

    class kind(Bonds):  # noqa: N801
        def _pass_on(self, before: Item) -> None:
            """Nobody is told."""


class LosesThePlace(BentBonds):
    """The place went to one that is cancelled: those behind it wait for ever."""

    class kind(Bonds):  # noqa: N801
        def _pass_on(self, before: Item) -> None:
            if before.state is State.LEASED:
                super()._pass_on(before)


class StarvesTheLow(Bent):
    """Strict priorities: as long as anything high comes, nothing else does."""

    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(
            structs.replace(want, turn=0, limit=min(want.limit, lanes.CYCLE // 2 - 1)) for want in request.wants
        )
        return await super().lease(structs.replace(request, wants=wants))


class RetriesTakeEverySlot(Bent):
    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(_without_share(want) for want in request.wants)
        return await super().lease(structs.replace(request, wants=wants))


def _without_share(want: Want) -> Want:
    return structs.replace(want, retries=None)


class CountsOnlyTheReady(Bent):
    """A queue is full when many wait; what is held or runs is not seen."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        lanes_of = self._table.lanes
        hidden = {name: lane.counts for name, lane in lanes_of.items()}
        for lane in lanes_of.values():
            lane.counts = type(lane.counts)(lane.counts)
            lane.counts["held"] = lane.counts["leased"] = lane.counts["parked"] = 0
        try:
            accepted, _, _ = self._putting._judge(items, self.now())
            self._putting._check_capacity(accepted.values())
        finally:
            for name, counts in hidden.items():
                lanes_of[name].counts = counts
        right, self._putting._check_capacity = self._putting._check_capacity, lambda accepted: None  # type: ignore[method-assign]
        try:
            return await super().put(items, within)
        finally:
            self._putting._check_capacity = right  # type: ignore[method-assign]


class FullRoutesEvict(Bent):
    """Redis lists with LTRIM, BullMQ `removeOnFail`: the oldest letter goes for the newest."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            decision = settlement.decision
            if isinstance(decision, ToDead) and not self._has_room(decision.route):
                oldest = min(
                    (
                        item
                        for item in self._table.items.values()
                        if item.letter and item.letter.route == decision.route
                    ),
                    key=lambda item: item.seq,
                )
                self.drop(oldest)
        return await super().settle(settlements, then)


# --- cancel and retention ---


class RunsAgainThoughCancelled(Bent):
    """Celery revoke: the task that crashed or retried has forgotten that it was revoked."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is not None and item.cancel and item.deliveries == settlement.delivery:
                self.force(structs.replace(item, cancel=""))
        return await super().settle(settlements, then)


class CancelsUnderTheHandler(Bent):
    """A running item is cancelled as if nobody held it: its work may still happen."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        for item_id in amended.changed if isinstance(change, Cancel) else ():
            item = self.peek(item_id)
            if item is not None and item.state is State.LEASED:
                self.force(structs.replace(item, state=State.CANCELLED, ended_at=self.now(), lease_until=None))
        return amended


class SweepsLettersToo(Bent):
    """Oban, Sidekiq: dead jobs go after their time."""

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        swept = await super().sweep(limit, by, cursor)
        for item in tuple(self._table.items.values()):
            keep = self._table.lanes[item.queue].settings.keep
            if item.letter is not None and keep is not None and item.letter.died_at + keep <= self.now():
                self.drop(item)
        return swept


class DropsTermsOnRetry(Bent):
    """The second attempt is another job, which has forgotten what it was bound to."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements)
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is not None and item.state is State.READY and item.terms is not None and not item.terms.order_key:
                self.force(structs.replace(item, terms=None))
        return settled if then is None else Settled(settled.answers, await super().lease(then))
