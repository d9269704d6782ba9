"""Planted bugs about reservations: the memory store with one thing bent, and how they come into the other engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Archive,
    Change,
    Refusal,
    Replay,
    Unreserve,
)
from redrive.core.item import Item, Millis
from redrive.core.select import Ids, Selection
from redrive.stores.postgres import amend as postgres_amend
from redrive.stores.sqlite import amend as sqlite_amend
from tests.stores.broken import Bent
from tests.stores.broken_servers import Bug
from tests.stores.planting import Edit, Patch, Plant


class BentReservations(Bent):
    def reserve(self, replays: dict[str, str]) -> None:
        for item_id, replay in replays.items():
            item = self.peek(item_id)
            if item is not None and item.letter is not None:
                self.force(structs.replace(item, letter=structs.replace(item.letter, reserved=replay)))

    def reserved(self) -> dict[str, str]:
        items = self._table.items.values()
        return {item.id: item.letter.reserved for item in items if item.letter is not None and item.letter.reserved}


class SendsWhatIsReserved(BentReservations):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        if isinstance(change, Replay):
            self.reserve(dict.fromkeys(selection.ids if isinstance(selection, Ids) else (), ""))
            change = structs.replace(change, reserved="")
        return await super().amend(selection, change, by, expect)


class ArchivesWhatIsReserved(BentReservations):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        if isinstance(change, Archive):
            self.reserve(dict.fromkeys(self.reserved(), ""))
        return await super().amend(selection, change, by, expect)


class UnreserveForgets(BentReservations):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        before = self.reserved()
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Unreserve):
            self.reserve({item_id: before[item_id] for item_id in amended.changed})
        return amended


class WorksOnWhatIsReserved(BentReservations):
    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        before = self.reserved()
        self.reserve(dict.fromkeys(before, reserved))
        given = await super().lease_letters(ids, worker, ttl, early=early, reserved=reserved)
        self.reserve(before)
        return given


class LeasesForAnyReplay(BentReservations):
    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        before = self.reserved()
        if reserved:
            self.reserve(dict.fromkeys(ids, reserved))
        given = await super().lease_letters(ids, worker, ttl, early=early, reserved=reserved)
        self.reserve(dict.fromkeys(ids, "") | before)
        return given


class UnreserveLeavesTheLease(BentReservations):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        before = [self.peek(item_id) for item_id in self.reserved()]
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Unreserve):
            for item in before:
                if item is not None:
                    self.force(item)
            self.reserve(dict.fromkeys(amended.changed, ""))
        return amended


def _heedless(module: Any, kind: type) -> Patch:
    """Changes of this kind find every letter reserved as they need it."""
    right = module.refusal

    def refusal(change: Change, *rest: Any, reserved: str = "", **more: Any) -> Refusal | None:
        if isinstance(change, kind):
            reserved = getattr(change, "reserved", "")
        reason: Refusal | None = right(change, *rest, reserved=reserved, **more)
        return reason

    return lambda monkeypatch: monkeypatch.setattr(module, "refusal", refusal)


_REFUSES = "test_reserved_letter_refuses_every_other_act"
BUGS: dict[str, Bug] = {
    "SendsWhatIsReserved": Bug(
        "another replay sends the letter, past the rate and the pause of its own",
        ("test_reserved_letters_are_sent_by_their_replay_alone", _REFUSES),
    ),
    "ArchivesWhatIsReserved": Bug(
        "a letter that is to be sent is put away",
        (_REFUSES, "test_amend_refuses_what_core_refuses_and_nothing_else"),
    ),
    "UnreserveForgets": Bug(
        "a cancelled replay keeps its letters from everybody for ever", ("test_reserved_letter_stays_the_letter_it_is",)
    ),
    "WorksOnWhatIsReserved": Bug("a letter is worked on in place and sent by its replay as well", (_REFUSES,)),
    "LeasesForAnyReplay": Bug(
        "a replay sends, with another payload, what was reserved for another one or for none",
        ("test_reserved_letters_are_leased_by_their_replay_alone",),
    ),
    "UnreserveLeavesTheLease": Bug(
        "what a cancelled replay had in hand is sent all the same",
        ("test_unreserve_takes_the_letter_from_the_replay_that_is_about_to_send_it",),
    ),
}
_LUA = "replay ~= named and change ~= 'unreserve'"
_LENDS = "(m[LETTER][RESERVED] or '') ~= reserved"
PLANTS: dict[str, dict[str, Plant]] = {
    "sqlite": {
        "SendsWhatIsReserved": Plant(patches=(_heedless(sqlite_amend, Replay),)),
        "ArchivesWhatIsReserved": Plant(patches=(_heedless(sqlite_amend, Archive),)),
        "UnreserveForgets": Plant((Edit("amend/reserve", "reserved = ?", "reserved = max(reserved, ?)"),)),
        "WorksOnWhatIsReserved": Plant((Edit("lease_letters/free", "l.reserved = ? and", "l.reserved >= ? and"),)),
        "LeasesForAnyReplay": Plant(
            (Edit("lease_letters/free", "l.reserved = ? and", "(? <> '' or l.reserved = '') and"),)
        ),
        "UnreserveLeavesTheLease": Plant(
            (
                Edit(
                    "amend/take_away",
                    "(select value from json_each(?))",
                    "(select value from json_each(?)) and seq not in (select seq from letter where reserved <> '')",
                ),
            )
        ),
    },
    "postgres": {
        "SendsWhatIsReserved": Plant(patches=(_heedless(postgres_amend, Replay),)),
        "ArchivesWhatIsReserved": Plant(patches=(_heedless(postgres_amend, Archive),)),
        "UnreserveForgets": Plant(
            (Edit("amend/reserve", "reserved = d.replay", "reserved = greatest(l.reserved, d.replay)"),)
        ),
        "WorksOnWhatIsReserved": Plant(
            (Edit("lease_letters/give", "l.reserved = a.reserved", "l.reserved >= a.reserved"),)
        ),
        "LeasesForAnyReplay": Plant(
            (Edit("lease_letters/give", "l.reserved = a.reserved", "(a.reserved <> '' or l.reserved = '')"),)
        ),
        "UnreserveLeavesTheLease": Plant(
            (
                Edit(
                    "amend/take_away",
                    "where seq = any(%b::bigint[])",
                    "where seq = any(%b::bigint[]) "
                    "and not exists (select 1 from {schema}.letter l where l.seq = course.seq and l.reserved <> '')",
                ),
            )
        ),
    },
    "redis": {
        "SendsWhatIsReserved": Plant((Edit("recall", _LUA, f"{_LUA} and change ~= 'replay'"),)),
        "ArchivesWhatIsReserved": Plant((Edit("recall", _LUA, f"{_LUA} and change ~= 'archive'"),)),
        "UnreserveForgets": Plant(
            (
                Edit(
                    "amend",
                    "= change == 'reserve' and how.replay or nil",
                    "= how.replay ~= '' and how.replay or 'replay-x'",
                ),
            )
        ),
        "WorksOnWhatIsReserved": Plant((Edit("lease_letters", _LENDS, f"{_LENDS} and reserved ~= ''"),)),
        "LeasesForAnyReplay": Plant((Edit("lease_letters", _LENDS, "m[LETTER][RESERVED] and reserved == ''"),)),
        "UnreserveLeavesTheLease": Plant(
            (
                Edit(
                    "amend",
                    "if m[LETTER] and m[LEASE_UNTIL] and change ~= 'tag' then",
                    "if m[LETTER] and m[LEASE_UNTIL] and change ~= 'tag' and change ~= 'unreserve' then",
                ),
            )
        ),
    },
}
