"""Planted bugs about recalls: each the memory store with one thing bent, and how they come into the other engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Change,
    Recall,
)
from redrive.core.item import Instant, Item
from redrive.core.select import Selection
from redrive.stores.memory import _moves
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._lines import Kept
from redrive.stores.postgres import amend as postgres_amend
from redrive.stores.sqlite import amend as sqlite_amend
from tests.stores.broken import Bent
from tests.stores.broken_servers import Bug
from tests.stores.broken_terms import BentBonds
from tests.stores.planting import Edit, Plant

# ruff: noqa: SLF001 - the bugs reach where no verb does


class RecallsWhatRan(Bent):
    """A letter is recalled under the hands of a worker, or after it had the item."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        if isinstance(change, Recall):
            for item_id, kept in self._table.kept.items():
                letter = structs.replace(kept.letter, deliveries=self._table.items[item_id].deliveries)
                self._table.kept[item_id] = kept._replace(letter=letter)
        return await super().amend(selection, change, by, expect)


class RecallsWithoutItsCounters(BentBonds):
    """The letter has the budget of the replay, and not what it had used up."""

    class kind(Bonds):  # noqa: N801 - a value of the class
        def recalled(self, pairs: Sequence[tuple[Item, Kept]], now: Instant) -> None:
            super().recalled(
                [
                    (item, kept._replace(letter=structs.replace(kept.letter, errors=0, crashes=0)))
                    for item, kept in pairs
                ],
                now,
            )


class RecallsToTheTail(BentBonds):
    """It comes back after those that were put behind it."""

    class kind(Bonds):  # noqa: N801
        def recalled(self, pairs: Sequence[tuple[Item, Kept]], now: Instant) -> None:
            super().recalled([(item, kept._replace(place=self._lines.kept(item).place)) for item, kept in pairs], now)


class RecallsWithoutItsRoute(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Recall):
            for item_id in amended.changed:
                item = self._table.items[item_id]
                letter = None if item.letter is None else structs.replace(item.letter, route="")
                self.force(structs.replace(item, letter=letter))
        return amended


class RecallCountsTwice(BentBonds):
    """The letter is counted where it is, and where it waited."""

    class kind(Bonds):  # noqa: N801
        def recalled(self, pairs: Sequence[tuple[Item, Kept]], now: Instant) -> None:
            super().recalled(pairs, now)
            for item, kept in pairs:
                letter = _moves.recalled(item, kept.letter)
                self._table.lanes[letter.queue].counts[self._table.bucket(letter)] += 1


def _sqlite_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sqlite_amend._recall

    def recall(tx: Any, places: list[sqlite_amend.Place], bound: Any) -> None:
        right(tx, places, bound)
        for place in places:
            tx.count(place.queue, "open", 1)

    monkeypatch.setattr(sqlite_amend, "_recall", recall)


def _postgres_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = postgres_amend._recall

    async def recall(session: Any, tx: Any, places: list[postgres_amend.Place]) -> None:
        await right(session, tx, places)
        for place in places:
            tx.count(place.queue, "open", 1)

    monkeypatch.setattr(postgres_amend, "_recall", recall)


_MAKES = "test_recall_makes_the_letter_that_it_was"
BUGS: dict[str, Bug] = {
    "RecallsWhatRan": Bug(
        "a letter is recalled after a worker had the item, and what it did is not seen",
        (
            "test_recall_refuses_what_a_worker_has_leased_since",
            "test_amend_refuses_what_core_refuses_and_nothing_else",
        ),
    ),
    "RecallsWithoutItsCounters": Bug("the letter forgets how often it failed", (_MAKES,), machine=True),
    "RecallsWithoutItsRoute": Bug("the owners of the route do not see the letter any more", (_MAKES,)),
    "RecallsToTheTail": Bug(
        "it comes back after those that were put behind it",
        ("test_recall_gives_a_letter_its_old_place_back",),
        machine=True,
    ),
    "RecallCountsTwice": Bug("the queue counts a letter that is not there", (_MAKES,), machine=True),
}
PLANTS: dict[str, dict[str, Plant]] = {
    "sqlite": {
        "RecallsWhatRan": Plant(
            (Edit("recall/deliveries", "i.deliveries, r.deliveries", "i.deliveries, i.deliveries"),)
        ),
        "RecallsWithoutItsCounters": Plant((Edit("recall/die", "errors = r.errors,", ""),)),
        "RecallsWithoutItsRoute": Plant((Edit("recall/letters", "r.failure, r.route", "r.failure, ''"),)),
        "RecallsToTheTail": Plant((Edit("recall/place", "place = ?,", "place = max(place, ?),"),)),
        "RecallCountsTwice": Plant(patches=(_sqlite_counts_twice,)),
    },
    "postgres": {
        "RecallsWhatRan": Plant(
            (
                Edit("recall/deliveries", "r.deliveries from", "c.deliveries from"),
                Edit("recall/deliveries", ".recall r where", ".recall r join {schema}.course c on c.seq = r.seq where"),
            )
        ),
        "RecallsWithoutItsCounters": Plant(
            (
                Edit("recall/die", "errors = r.errors,", ""),
                Edit("recall/die", "r.errors + r.crashes + c.replays", "c.errors + r.crashes + c.replays"),
            )
        ),
        "RecallsWithoutItsRoute": Plant((Edit("recall/die", "r.failure, r.route", "r.failure, ''"),)),
        "RecallsToTheTail": Plant(
            (Edit("recall/put_back", "place = o.place,", "place = greatest(t.place, o.place),"),)
        ),
        "RecallCountsTwice": Plant(patches=(_postgres_counts_twice,)),
    },
    "redis": {
        "RecallsWhatRan": Plant((Edit("recall", "kept[KEPT_DELIVERIES] ~= m[DELIVERIES]", "not m[DELIVERIES]"),)),
        "RecallsWithoutItsCounters": Plant((Edit("recall", "kept[KEPT_ERRORS], kept", "m[ERRORS], kept"),)),
        "RecallsWithoutItsRoute": Plant(
            (Edit("recall", "if kept[KEPT_FAILURE] then", "m[LETTER][ROUTE] = '' if kept[KEPT_FAILURE] then"),)
        ),
        "RecallsToTheTail": Plant((Edit("recall", "= kept[KEPT_PLACE], kept", "= m[TERMS][PLACE], kept"),)),
        "RecallCountsTwice": Plant(
            (
                Edit(
                    "recall",
                    "m[REPLAYS] = m[REPLAYS] - 1",
                    "m[REPLAYS] = m[REPLAYS] - 1 add(P .. 'held:' .. m[QUEUE], 1, id)",
                ),
            )
        ),
    },
}
