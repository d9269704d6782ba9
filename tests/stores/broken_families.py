"""Planted bugs of families: what a lease of a family must look at, in which order, and what bounds the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from redrive.core.families import is_family, look_again
from redrive.core.item import Instant, NewItem
from redrive.core.verbs import LeaseRequest, Leases, NewEntry, PutResult, QueueChange
from redrive.stores.memory._turns import Turns
from redrive.stores.postgres import settings as postgres_settings
from redrive.stores.sqlite import configure as sqlite_configure
from redrive.stores.sqlite import families as sqlite_families
from redrive.stores.sqlite import lease as sqlite_lease
from redrive.stores.sqlite.tx import Tx
from tests.stores.broken import Bent
from tests.stores.broken_servers import Bug
from tests.stores.planting import Edit, Plant


class BentTurns(Bent):
    """Families get these turns with their first lease."""

    kind: type[Turns] = Turns

    async def lease(self, request: LeaseRequest) -> Leases:
        for want in request.wants:
            if want.queue.endswith(":*"):
                family = self._table.declare_family(want.queue)
                if type(family.turns) is Turns:
                    bent = self.kind()
                    for queue in family.turns.due(1 << 62):
                        bent.lower(queue)
                    family.turns = bent
        return await super().lease(request)


class PutsUnseen(Bent):
    """A write wakes those who wait, and no lease looks at the member for it."""

    def _wake(self, queue: str) -> None:
        self._waiters.wake(queue)


class ResumesUnseen(Bent):
    """A member that is unpaused is looked at when something is put to it."""

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        look_at, self._table.look_at = self._table.look_at, lambda queue: None  # type: ignore[method-assign] # the bug
        try:
            await super().configure(queue, change, audit)
        finally:
            self._table.look_at = look_at  # type: ignore[method-assign] # as it was


class LooksTooLate(BentTurns):
    """What a rate held back is looked at a while after it may be given."""

    class kind(Turns):  # noqa: N801 - a value of the class
        def look_at(self, queue: str, when: Instant | None, now: Instant) -> None:
            super().look_at(queue, when if when is None or when <= now else when + 500, now)


class ServesTheFirstAgain(BentTurns):
    """A member that has more keeps its place before all others."""

    class kind(Turns):  # noqa: N801 - a value of the class
        def look_at(self, queue: str, when: Instant | None, now: Instant) -> None:
            if when is None or when > now:
                super().look_at(queue, when, now)


class WaitsForOtherKinds(Bent):
    """Whatever is due of any member ends a wait."""

    def _next_change(self, queue: str, now: Instant, kinds: tuple[str, ...] | None) -> Instant | None:
        return super()._next_change(queue, now, None if is_family(queue) else kinds)


class HidesTheRest(Bent):
    """A lease says nothing of members that it did not look at."""

    async def lease(self, request: LeaseRequest) -> Leases:
        return structs.replace(await super().lease(request), more=False)


class AsksForEver(Bent):
    """Members of which the worker has no kind are a reason to ask again at once."""

    async def lease(self, request: LeaseRequest) -> Leases:
        leases = await super().lease(request)
        return structs.replace(leases, more=leases.more or not leases.items)


class HasRoomForAll(Bent):
    """The capacity of the family refuses nothing."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        kept = [(lane, lane.own) for lane in self._table.families.values()]
        for lane, own in kept:
            lane.own = structs.replace(own, capacity=None)
        try:
            return await super().put(items, within)
        finally:
            for lane, own in kept:
                lane.own = own


# --- the engines ---

BUGS: dict[str, Bug] = {
    "PutsUnseen": Bug(
        "no lease of the family looks at a member for what is put to it",
        ("test_family_members_come_and_go_while_workers_run",),
    ),
    "ResumesUnseen": Bug(
        "a member that is unpaused is looked at when something is put to it",
        ("test_family_member_that_is_paused_does_not_keep_others_back",),
    ),
    "LooksTooLate": Bug(
        "what a rate held back is looked at a while after it may be given",
        ("test_family_rate_gives_as_soon_as_it_may",),
    ),
    "ServesTheFirstAgain": Bug(
        "a member that has more keeps its place before all others",
        ("test_family_lease_takes_turns_one_item_at_a_time",),
    ),
    "WaitsForOtherKinds": Bug(
        "a wait ends for kinds that the worker does not have, again and again",
        ("test_family_wait_does_not_return_for_other_kinds",),
    ),
    "HidesTheRest": Bug(
        "a lease says nothing of members that it did not look at",
        ("test_family_lease_that_puts_many_off_is_asked_again_at_once",),
    ),
    "AsksForEver": Bug(
        "members of which the worker has no kind are a reason to ask again at once",
        ("test_family_members_of_other_kinds_are_no_reason_to_ask_again_at_once",),
    ),
    "HasRoomForAll": Bug("the capacity of the family refuses nothing", ("test_family_capacity_counts_all_members",)),
}


def _sqlite_resumes_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sqlite_configure.configure

    def configure(tx: Tx, queue: str, change: QueueChange) -> Any:
        after = right(tx, queue, change)
        tx.woken.discard(queue)
        return after

    monkeypatch.setattr(sqlite_configure, "configure", configure)


def _sqlite_looks_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(opens: Instant | None, now: Instant, *, shared_budget: bool) -> Instant | None:
        when = look_again(opens, now, shared_budget=shared_budget)
        return when if when is None or when <= now else when + 500

    monkeypatch.setattr(sqlite_families, "look_again", too_late)


def _sqlite_waits_for_other_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sqlite_families.next_look
    monkeypatch.setattr(sqlite_families, "next_look", lambda tx, name, _: right(tx, name, None))


def _sqlite_hides_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_lease, "VISITS", 1_000)


def _sqlite_asks_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sqlite_lease._Giving._look_again  # noqa: SLF001 - the bug is in it

    def look_again(giving: Any, queue: str) -> bool:
        giving._more |= giving._is_full  # noqa: SLF001 - as above
        return right(giving, queue)

    monkeypatch.setattr(sqlite_lease._Giving, "_look_again", look_again)  # noqa: SLF001 - as above


def _sqlite_has_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tx.admit

    def admit(tx: Tx, queue: str, count: int) -> None:
        if not is_family(queue):
            right(tx, queue, count)

    monkeypatch.setattr(Tx, "admit", admit)


def _postgres_resumes_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = postgres_settings._configure  # noqa: SLF001 - the bug is in it

    async def configure(session: Any, tx: Any, queue: str, change: QueueChange) -> Any:
        after = await right(session, tx, queue, change)
        tx.woken.discard(queue)
        return after

    monkeypatch.setattr(postgres_settings, "_configure", configure)


PLANTS: dict[str, dict[str, Plant]] = {
    "sqlite": {
        "PutsUnseen": Plant((Edit("families/lower", "values (?, ?, ?)", "select ?, ?, ? where false"),)),
        "ResumesUnseen": Plant(patches=(_sqlite_resumes_unseen,)),
        "LooksTooLate": Plant(patches=(_sqlite_looks_too_late,)),
        "ServesTheFirstAgain": Plant(
            (
                Edit("families/look_at", "insert or replace", "insert"),
                Edit(
                    "families/look_at",
                    "values (?, ?, ?)",
                    "values (?, ?, ?) on conflict (queue) do update set next_at = excluded.next_at",
                ),
            )
        ),
        "WaitsForOtherKinds": Plant(patches=(_sqlite_waits_for_other_kinds,)),
        "HidesTheRest": Plant(patches=(_sqlite_hides_the_rest,)),
        "AsksForEver": Plant(patches=(_sqlite_asks_for_ever,)),
        "HasRoomForAll": Plant(patches=(_sqlite_has_room_for_all,)),
    },
    "postgres": {
        "PutsUnseen": Plant((Edit("families/count_member", "if new.ready > 0 or", "if false or"),)),
        "ResumesUnseen": Plant(patches=(_postgres_resumes_unseen,)),
        "LooksTooLate": Plant((Edit("families/look_again", "return opens;", "return opens + 500;"),)),
        "ServesTheFirstAgain": Plant((Edit("families/turns", "o.is_soon, o.place)", "o.is_soon, o.place desc)"),)),
        "WaitsForOtherKinds": Plant((Edit("families/next_look", "if of_kinds is null then", "if true then"),)),
        "HidesTheRest": Plant((Edit("families/turns", "is_full := true;", "is_full := false;"),)),
        "AsksForEver": Plant((Edit("families/looked_at", "l.next_at is distinct from 0", "true"),)),
        "HasRoomForAll": Plant(
            (Edit("put/crowded", "split_part(o.name, ':', 1) || ':*', count(*)", "'', count(*)"),),
        ),
    },
    "redis": {
        "PutsUnseen": Plant((Edit("prelude", "woken[queue] = nil kin.lower(queue)", "woken[queue] = nil"),)),
        "ResumesUnseen": Plant((Edit("configure", "wake(queue) enter_audit(8)", "enter_audit(8)"),)),
        "WaitsForOtherKinds": Plant((Edit("due", "if not of_kinds then", "if true then"),)),
        "LooksTooLate": Plant((Edit("families", "string.format('%.0f', when)", "when + 500"),)),
        "ServesTheFirstAgain": Plant(
            (
                Edit(
                    "families",
                    "call('ZREM', P .. 'turns:' .. family, queue)",
                    "if not when or when > time then call('ZREM', P .. 'turns:' .. family, queue) end",
                ),
            )
        ),
        "HidesTheRest": Plant((Edit("families", "kin.is_full and not has_more", "false"),)),
        "AsksForEver": Plant((Edit("families", "kin.is_full and not has_more", "kin.is_full"),)),
        "HasRoomForAll": Plant(
            (Edit("putting", "if family and settings[4] and settings[4][5] then", "if false then"),)
        ),
    },
}
