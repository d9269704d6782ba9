"""Bugs of the acts park, unpark and edit: what they are, and how each comes into every store."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Change,
    Edit,
    Park,
    Refusal,
    Replay,
    RunNow,
)
from redrive.core.item import Item
from redrive.core.select import Ids, Selection
from redrive.core.states import State
from redrive.core.terms import is_parked
from redrive.stores.clock import Clock
from redrive.stores.memory._bonds import Bonds
from redrive.stores.postgres import amend as postgres_amend
from redrive.stores.redis import amend as redis_amend
from redrive.stores.sqlite import amend as sqlite_amend
from redrive.stores.sqlite import rebind
from redrive.stores.sqlite.tx import Tx
from tests.stores import planting
from tests.stores.broken import Bent
from tests.stores.broken_servers import Bug
from tests.stores.broken_terms import BentBonds
from tests.stores.planting import Patch, Plant

# ruff: noqa: SLF001 - the bugs reach where no verb does

ACTS: dict[str, Bug] = {
    "LeasesWhatIsParked": Bug(
        "an operator parked it, and a worker runs it all the same",
        ("test_park_keeps_a_due_item_from_every_worker",),
    ),
    "OrderForgetsThePark": Bug(
        "a parked item runs as soon as it is the head of its order key",
        ("test_parked_follower_stays_parked_when_it_becomes_the_head",),
    ),
    "UnparkForgetsTheOrder": Bug(
        "what is unparked overtakes the head of its order key", ("test_unpark_of_a_follower_waits_for_its_turn",)
    ),
    "CountsParkedAsBacklog": Bug(
        "parked items count as work that waits", ("test_park_keeps_a_due_item_from_every_worker",)
    ),
    "ParksAPromisedPlace": Bug(
        "the place under its limit key is promised to a parked item, and the others wait for ever",
        ("test_park_gives_a_promised_place_under_a_limit_key_to_the_next",),
    ),
    "RunsNowWhatIsParked": Bug(
        "an operator runs a parked item now, and it stays where it is", ("test_parked_item_is_not_run_now",)
    ),
    "EditsWhatRuns": Bug(
        "an edit is accepted while a worker runs the payload before it",
        ("test_edit_of_what_runs_or_is_over_is_refused", "test_amend_refuses_what_core_refuses_and_nothing_else"),
    ),
    "KeepsNoOriginal": Bug(
        "the payload that was enqueued is lost by an edit",
        ("test_edit_of_a_letter_keeps_the_original_and_changes_nothing_else",),
    ),
    "IgnoresTheRevision": Bug(
        "the second of two edits overwrites the first one unseen",
        ("test_edit_of_another_revision_is_skipped", "test_amend_refuses_what_core_refuses_and_nothing_else"),
    ),
    "ReplaysTheOriginal": Bug(
        "an edited letter runs with the payload that failed", ("test_edited_payload_is_delivered_after_a_replay",)
    ),
}


# --- memory ---


class LeasesWhatIsParked(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Park):
            for item_id in amended.changed:
                self.force(structs.replace(self._table.items[item_id], hold=""))
        return amended


class OrderForgetsThePark(BentBonds):
    class kind(Bonds):  # noqa: N801 - a value of the class
        def _place(self, item: Item) -> Item:
            return super()._place(structs.replace(item, hold="") if is_parked(item.hold) else item)


class UnparkForgetsTheOrder(BentBonds):
    class kind(Bonds):  # noqa: N801
        def unparked(self, item: Item) -> None:
            pass


class ParksAPromisedPlace(BentBonds):
    class kind(Bonds):  # noqa: N801
        def parked(self, before: Any) -> None:
            pass


class CountsParkedAsBacklog(Bent):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        right = self._table.bucket
        self._table.bucket = lambda item: "ready" if is_parked(item.hold) else right(item)  # type: ignore[method-assign] # bent


class RunsNowWhatIsParked(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        parked = tuple([one.id for one in amended.skipped if isinstance(change, RunNow) and one.code == "parked"])
        rest = tuple([one for one in amended.skipped if one.id not in parked])
        return Amended(amended.changed + parked, amended.already, rest)


class EditsWhatRuns(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        if isinstance(change, Edit) and isinstance(selection, Ids):
            for item in self._table.present(selection.ids):
                if item.state is State.LEASED:
                    self.force(structs.replace(item, payload=change.payload))
        return await super().amend(selection, change, by, expect)


class KeepsNoOriginal(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        for item_id in amended.changed:
            self._table._trail(item_id).revisions.clear()
        return amended


class IgnoresTheRevision(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        return await super().amend(selection, Edit(change.payload) if isinstance(change, Edit) else change, by, expect)


class ReplaysTheOriginal(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Replay):
            for item_id in amended.changed:
                for first in self._table._trail(item_id).revisions[:1]:
                    self.force(structs.replace(self._table.items[item_id], payload=first.payload))
        return amended


# --- the engines ---


def _edits_what_runs(module: Any) -> Patch:
    right = module.refusal

    def refusal(change: Change, state: State, *rest: Any, **more: Any) -> Refusal | None:
        is_bent = isinstance(change, Edit) and state is State.LEASED
        reason: Refusal | None = None if is_bent else right(change, state, *rest, **more)
        return reason

    return lambda monkeypatch: monkeypatch.setattr(module, "refusal", refusal)


def _never_parked(module: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(module, "parked_refusal", lambda _, parked: None)


def _asks_for_no_revision(module: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(module, "edit_refusal", lambda _, __: None)


def _counts_no_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tx.moved

    def moved(tx: Tx, queue: str, before: Any, after: Any, by: int = 1) -> None:
        if after != "parked":
            right(tx, queue, before, after, by)

    monkeypatch.setattr(Tx, "moved", moved)


def _recounts_no_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    right = postgres_amend.recount

    def recount(tx: Any, places: Any, after: Any, into: str = "") -> None:
        if after != "parked":
            right(tx, places, after, into)

    monkeypatch.setattr(postgres_amend, "recount", recount)


def _replays_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sqlite_amend._replay
    back = (
        "update payload set (body, packing, crc) = "
        "(select r.body, r.packing, r.crc from revision r where r.seq = payload.seq and r.number = 0) "
        "where seq in (select seq from revision)"
    )

    def replay(tx: Tx, *rest: Any) -> None:
        right(tx, *rest)
        tx.execute(back)

    monkeypatch.setattr(sqlite_amend, "_replay", replay)


def _plant(at: str, old: str, new: str = "") -> Plant:
    return Plant((planting.Edit(at, old, new),))


_PASSES_ON = "elseif hold == 0 and tied(m, LIMITED) then"
SQLITE: dict[str, Plant] = {
    "LeasesWhatIsParked": _plant("amend/park", "hold = 4", "hold = 0"),
    "OrderForgetsThePark": _plant("order/free", "hold = 2", "hold in (2, 4)"),
    "UnparkForgetsTheOrder": _plant("amend/unpark", "hold = ?", "hold = 0 * ?"),
    "CountsParkedAsBacklog": Plant(patches=(_counts_no_parked,)),
    "ParksAPromisedPlace": Plant(
        patches=(lambda monkeypatch: monkeypatch.setattr(rebind, "parked", lambda _, __: None),)
    ),
    "RunsNowWhatIsParked": Plant(patches=(_never_parked(sqlite_amend),)),
    "EditsWhatRuns": Plant(patches=(_edits_what_runs(sqlite_amend),)),
    "KeepsNoOriginal": _plant("amend/keep_revision", "from payload where seq = ?1", "from payload where seq = -?1"),
    "IgnoresTheRevision": Plant(patches=(_asks_for_no_revision(sqlite_amend),)),
    "ReplaysTheOriginal": Plant(patches=(_replays_the_first,)),
}
POSTGRES: dict[str, Plant] = {
    "LeasesWhatIsParked": _plant("amend/park", "set hold = 4", "set hold = 0"),
    "OrderForgetsThePark": _plant("bonds/end_heads", "c.ties & 260 = 0", "c.ties & 4 = 0"),
    "UnparkForgetsTheOrder": _plant("amend/unpark_items", ") then 2 else 0 end", ") then 0 else 0 end"),
    "CountsParkedAsBacklog": Plant(patches=(_recounts_no_parked,)),
    "ParksAPromisedPlace": _plant(
        "amend/pass_on", "'{}'::bigint[], %b::bigint[]", "'{}'::bigint[], (%b::bigint[])[1 : 0]"
    ),
    "RunsNowWhatIsParked": Plant(patches=(_never_parked(postgres_amend),)),
    "EditsWhatRuns": Plant(patches=(_edits_what_runs(postgres_amend),)),
    "KeepsNoOriginal": _plant("amend/keep_revisions", "any (array[o.seq])", "any (array[-o.seq])"),
    "IgnoresTheRevision": Plant(patches=(_asks_for_no_revision(postgres_amend),)),
    "ReplaysTheOriginal": _plant(
        "amend/replay",
        "with gone as (",
        "with back as (update {schema}.item i set body = r.body, crc = r.crc, packing = r.packing "
        "from {schema}.revision r where r.seq = i.seq and r.number = 0), gone as (",
    ),
}
REDIS: dict[str, Plant] = {
    "LeasesWhatIsParked": _plant("amend", "terms[PARK_LABEL] = HELD_PARKED,", "terms[PARK_LABEL] = 0,"),
    "OrderForgetsThePark": _plant("ties", "if tied(m, PARKED_ITEM) then m[HOLD] = HELD_PARKED elseif", "if"),
    "UnparkForgetsTheOrder": _plant(
        "amend",
        "m[TIES] = band(m[TIES], bit.bnot(PARKED_ITEM)) hold_again(id, m)",
        "m[TIES], m[HOLD] = band(m[TIES], bit.bnot(PARKED_ITEM)), 0",
    ),
    "CountsParkedAsBacklog": _plant(
        "tally", "local count, ids = call('ZCARD', P .. 'parks:' .. queue), nil", "local count, ids = 0, nil"
    ),
    "ParksAPromisedPlace": _plant("amend", _PASSES_ON, "elseif false then"),
    "RunsNowWhatIsParked": _plant("amend", "tied(m, PARKED_ITEM) and acts_on.IS_PARKED or nil", "nil"),
    "EditsWhatRuns": Plant(patches=(_edits_what_runs(redis_amend),)),
    "KeepsNoOriginal": _plant(
        "amend", "push(P .. 'revisions:' .. id, string.format('%08d', #about) .. about .. before)", ""
    ),
    "IgnoresTheRevision": _plant("amend", "or how.revision and how.revision ~= number", ""),
    "ReplaysTheOriginal": _plant(
        "amend",
        "unset(P .. 'result', id)",
        "unset(P .. 'result', id) local first = call('LINDEX', P .. 'revisions:' .. id, 0)\n"
        "if first then set(P .. 'body', id, string.sub(first, 9 + tonumber(string.sub(first, 1, 8)))) end",
    ),
}
PLANTS = {"sqlite": SQLITE, "postgres": POSTGRES, "redis": REDIS}
