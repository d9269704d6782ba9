"""Planted bugs about the share of retries, and about the lease of one item by its id."""

from __future__ import annotations

from msgspec import structs

from redrive.core import lanes
from redrive.core.item import Instant, Item
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Leases, Want
from redrive.stores.clock import Clock
from redrive.stores.memory._agenda import Slot
from redrive.stores.memory._lane import Lane
from redrive.stores.memory._leasing import Leasing
from tests.stores.broken import Bent
from tests.stores.broken_servers import Bug

# ruff: noqa: SLF001 - the bugs reach where no verb does


class BentLeasing(Bent):
    """With another kind of leasing."""

    kind: type[Leasing] = Leasing

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._leasing = self.kind(self._table, self._limits)


class SharesSlotsOnly(Bent):
    """The share bounds one request: where a rate gives one at a time, retries have them all."""

    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(
            structs.replace(want, share=None, retries=-(-want.limit * (want.share or 1000) // 1000))
            for want in request.wants
        )
        return await super().lease(structs.replace(request, wants=wants))


class LendsNothing(BentLeasing):
    """What first attempts do not use stays unused."""

    class kind(Leasing):  # noqa: N801
        @staticmethod
        def _choose(lane: Lane, want: Want, most_retries: int, now: Instant) -> list[Slot]:
            if want.share is not None:
                turns = range(want.turn, want.turn + want.limit)
                most_retries = min(most_retries, sum(lanes.may_retry(turn, want.share) for turn in turns))
            return Leasing._choose(lane, want, most_retries, now)


class GoesInStep(Bent):
    """Every cycle is as the first one: a turn of low is always the turn of the same kind."""

    async def lease(self, request: LeaseRequest) -> Leases:
        wants = tuple(structs.replace(want, turn=want.turn % lanes.CYCLE) for want in request.wants)
        return await super().lease(structs.replace(request, wants=wants))


class PassesAHold(BentLeasing):
    """Whoever names an item gets it, whatever it waits for."""

    class kind(Leasing):  # noqa: N801
        def _give_one(self, request: LeaseRequest, now: Instant) -> Leases:
            item = self._table.items.get(request.item)
            if item is not None and item.hold:
                self._table.save(structs.replace(item, hold=""))
            return super()._give_one(request, now)


class GivesWhatRuns(BentLeasing):
    """The second who names it takes it from the first."""

    class kind(Leasing):  # noqa: N801
        def _give_one(self, request: LeaseRequest, now: Instant) -> Leases:
            item = self._table.items.get(request.item)
            if item is not None and item.state is State.LEASED:
                return Leases((self._hand_over(item, request.wants[0], request.worker, now, alone=False),))
            return super()._give_one(request, now)


class IgnoresTheNonceOfTheNamed(BentLeasing):
    """A repeated request by id finds its item leased, and gives nothing: who repeats it waits for ever."""

    class kind(Leasing):  # noqa: N801
        def lease(self, request: LeaseRequest, now: Instant) -> Leases:
            if request.item:
                self._given.pop((request.worker, request.lane), None)
            return super().lease(request, now)


class GivesMoreThanTheNamed(BentLeasing):
    """The named item first, and then as many as there is room for."""

    class kind(Leasing):  # noqa: N801
        def _give_one(self, request: LeaseRequest, now: Instant) -> Leases:
            first = super()._give_one(request, now)
            rest = self._give(structs.replace(request, item=""), now)
            return Leases((*first.items, *rest.items), rest.suspects_due)


class SpendsNothingForTheNamed(BentLeasing):
    """What an operator asked for is not counted: the rate gives as many besides."""

    class kind(Leasing):  # noqa: N801
        def _give_one(self, request: LeaseRequest, now: Instant) -> Leases:
            (want,) = request.wants
            item: Item | None = self._table.items.get(request.item)
            if item is None or item.state is not State.READY or item.hold or item.crashes >= want.max_crashes - 1:
                return super()._give_one(request, now)
            return Leases((self._hand_over(item, want, request.worker, now, alone=False),))


LANES: dict[str, Bug] = {
    "SharesSlotsOnly": Bug(
        "under a rate or behind a breaker retries take all that there is, and fresh work waits behind them",
        (
            "test_fresh_work_goes_first_under_a_rate",
            "test_fresh_work_goes_first_through_a_breaker",
            "test_fresh_work_is_chosen_as_the_table_says",
        ),
    ),
    "LendsNothing": Bug(
        "no first attempt waits, and retries get their share alone",
        ("test_fresh_work_that_does_not_wait_lends_its_share", "test_fresh_work_is_chosen_as_the_table_says"),
    ),
    "GoesInStep": Bug(
        "first attempts of low priority never come to their turn while such retries wait",
        (
            "test_fresh_work_and_retries_of_every_priority_come_to_their_turn",
            "test_fresh_work_is_chosen_as_the_table_says",
        ),
    ),
    "PassesAHold": Bug(
        "an item that is named runs before what it waits for", ("test_lease_item_never_passes_a_hold",), machine=True
    ),
    "GivesWhatRuns": Bug(
        "the second who names an item has it beside the first",
        ("test_lease_item_gives_only_what_waits", "test_race_of_leases_of_one_item_has_one_winner"),
        machine=True,
    ),
    "IgnoresTheNonceOfTheNamed": Bug(
        "the answer was lost, and who asks again gets nothing until the lease runs out",
        ("test_lease_item_with_the_same_nonce_gives_the_same",),
        machine=True,
    ),
    "LearnsFromTheNamed": Bug(
        "those that were due before a named item are passed over",
        ("test_lease_item_leaves_the_others_in_their_order",),
    ),
}
