"""Planted bugs about what people do with letters: each the memory store with one thing bent."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from redrive.core.item import History, Instant, Item
from redrive.core.select import Selection
from redrive.core.verbs import Act, Amended, Change, Discard, Move, PutResult, Replay
from redrive.stores.memory._acts import Acts
from redrive.stores.memory._bonds import Bonds
from tests.stores.broken import Bent
from tests.stores.broken_terms import BentBonds

# ruff: noqa: SLF001 - the bugs reach where no verb does


class MovesTheHeadAway(BentBonds):
    """Those behind it wait for one that is not in their line any more."""

    class kind(Bonds):  # noqa: N801 - a value of the class
        def keeps_back(self, letter: Item) -> bool:
            return False


class MovesIntoARing(BentBonds):
    """It stands behind one that waits for it."""

    class kind(Bonds):  # noqa: N801
        def was_awaited(self, letter: Item) -> bool:
            return False


class MovesWithoutLeaving(BentBonds):
    """The line that it headed waits for it, in a queue where it is not."""

    class kind(Bonds):  # noqa: N801
        def moves(self, letter: Item, queue: str) -> Item:
            moved = structs.replace(letter, queue=queue)
            self._table.save(moved)
            return moved


class ForgetsTagsOnReplay(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Replay):
            for item_id in amended.changed:
                self.force(structs.replace(self._table.items[item_id], tags=()))
        return amended


class MovesWithoutAuditing(Bent):
    """SQS redrive to another queue: nobody can tell who sent it there."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        before = {topic: list(entries) for topic, entries in self._journal._topics.items()}
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Move):
            self._journal._topics = before
        return amended


class HoldsTrashFromItsDeath(Bent):
    """A letter that lay for long is removed for good as soon as it is discarded."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, Discard):
            for item_id in amended.changed:
                item = self._table.items[item_id]
                if item.letter is not None:
                    self.force(structs.replace(item, ended_at=item.letter.died_at))
        return amended


class _AsTheFileHasThem(Acts):
    def take_in(self, histories: Sequence[History], by: Act, now: Instant) -> PutResult:
        return super().take_in(sorted(histories, key=lambda history: history.item.id, reverse=True), by, now)


class TakesInAsTheFileHasThem(Bent):
    """Those who wait get their places before those they wait for."""

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        self._acts = _AsTheFileHasThem(self._table, self._bonds, self._tombstones)
        return await super().take_in(histories, by)


class TakesInOverWhatIsThere(Bent):
    """A letter from elsewhere takes the place of the item that has its id."""

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        for history in histories:
            there = self.peek(history.item.id)
            if there is not None:
                self.drop(there)
        return await super().take_in(histories, by)
