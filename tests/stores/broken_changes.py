"""Planted bugs about change numbers: each the memory store with one thing bent."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.terms import DEPENDENCY
from redrive.core.verbs import LeaseRequest, Settled, Settlement
from redrive.stores.clock import Clock
from redrive.stores.memory._changes import Changes
from redrive.stores.memory._table import Table
from tests.stores.broken import Bent

# ruff: noqa: SLF001 - the bugs reach where no verb does


class BentChanges(Changes):
    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table
        self.shared = False


class BentNumbers(Bent):
    """With changes of another kind."""

    kind: type[BentChanges] = BentChanges

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._table.changes = self.changed = self.kind(self._table)


class NumbersNoCascade(BentNumbers):
    """Those that die with another are letters that no reader of changes hears of."""

    class kind(BentChanges):  # noqa: N801 - a value of the class
        def note(self, item_id: str) -> None:
            item = self.table.items.get(item_id)
            if item is None or item.letter is None or item.letter.reason != DEPENDENCY:
                super().note(item_id)


class NumbersNoReplay(BentNumbers):
    """A replayed letter stays a letter in every mirror."""

    class kind(BentChanges):  # noqa: N801
        def note(self, item_id: str) -> None:
            item = self.table.items.get(item_id)
            if item is None or item.letter is not None:
                super().note(item_id)


class NumbersNoPrune(BentNumbers):
    """What was pruned stays in every mirror."""

    class kind(BentChanges):  # noqa: N801
        def note(self, item_id: str) -> None:
            if item_id in self.table.items:
                super().note(item_id)


class ReusesTheNewest(BentNumbers):
    """The last number is looked up among those that are there: after a prune of the newest it is given again."""

    class kind(BentChanges):  # noqa: N801
        def note(self, item_id: str) -> None:
            if item_id in self.table.items:
                super().note(item_id)
            else:
                del self._numbers[item_id]
                self._order = [one for one in self._order if one[1] != item_id]
                self._last = max(self._numbers.values(), default=0)


class SharesANumber(BentNumbers):
    """All that one settle changes have one number: a page that ends between them loses the rest."""

    class kind(BentChanges):  # noqa: N801
        def note(self, item_id: str) -> None:
            super().note(item_id)
            if self.shared:
                self._last -= 1

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        self.changed.shared = True
        try:
            return await super().settle(settlements, then)
        finally:
            self.changed.shared = False
            self.changed._last += 1


class CountsLeasesAsChanges(BentNumbers):
    """Whoever works on letters where they lie sends every reader to them, again and again."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        save = self._table.save
        self._table.save = lambda item, **_: save(item)  # type: ignore[method-assign] # the bug
