"""Planted bugs about what people do with letters: each the memory store with one thing bent."""

from __future__ import annotations

import base64
from collections.abc import Container, Sequence
from contextlib import suppress

from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Cancel,
    Change,
    Discard,
    Expire,
    Move,
    Replay,
    RunNow,
    SetPolicy,
)
from redrive.core.decide import ToDone
from redrive.core.item import History, Instant, Item, Millis
from redrive.core.select import Not, Selection
from redrive.core.states import State
from redrive.core.terms import EXPIRED
from redrive.core.verbs import (
    Answer,
    IdPage,
    LeaseRequest,
    Page,
    PutResult,
    Settled,
    Settlement,
    Verdict,
)
from redrive.errors import ConfigError
from redrive.stores.base import IDS_LIMIT
from redrive.stores.cursor import Pages, read, write
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


class KeepsTheOldPolicy(Bent):
    """The audit says that an operator replaced it, and workers go by the old one."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        before = dict(self._table.items)
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, SetPolicy):
            for item_id in amended.changed:
                self.force(before[item_id])
        return amended


class RunsLaterInstead(Bent):
    """The audit says that it was to run at once, and it waits as before."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        before = dict(self._table.items)
        amended = await super().amend(selection, change, by, expect)
        if isinstance(change, RunNow):
            for item_id in amended.changed:
                self.force(before[item_id])
        return amended


class KeepsTheOldCounters(Bent):
    """It was given a new budget, and its next error is the last one all the same."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        return await super().amend(selection, RunNow() if isinstance(change, RunNow) else change, by, expect)


class ExpiresWithoutItsLine(BentBonds):
    """Those behind an expired head wait for it, though the queue lets them past dead ones."""

    class kind(Bonds):  # noqa: N801
        def ended(self, moved: Sequence[tuple[Item, Item]], now: Instant, passed: Container[str] = ()) -> None:
            expired = [pair for pair in moved if pair[1].letter is not None and pair[1].letter.reason == EXPIRED]
            super().ended([pair for pair in moved if pair not in expired], now, passed)


class ExpiresAsCancelled(Bent):
    """What was too late is gone, and no letter tells of it."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        return await super().amend(selection, Cancel() if isinstance(change, Expire) else change, by, expect)


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


class GivesALetterTwice(Bent):
    """Two work on one letter where it lies."""

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        for item in self._table.present(ids):
            self.force(structs.replace(item, lease_until=None) if item.letter is not None else item)
        return await super().lease_letters(ids, worker, ttl, early=early, reserved=reserved)


class TakesEarlyFromItsHolder(Bent):
    """Whoever asks for what was put off is given what somebody works on."""

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        for item in self._table.present(ids) if early else ():
            is_held = item.letter is not None and item.lease_until is not None and item.worker != worker
            self.force(structs.replace(item, lease_until=None) if is_held else item)
        return await super().lease_letters(ids, worker, ttl, early=early, reserved=reserved)


class SettlesLettersLikeItems(Bent):
    """A worker that settles its items ends a letter with them."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for one in settlements:
            item = self.peek(one.id)
            if item is not None and item.letter is not None and item.lease_until is not None:
                self.force(structs.replace(item, state=State.LEASED, letter=None))
        return await super().settle(settlements, then)


class KeepsTheLineOfADoneLetter(Bent):
    """Those behind it go on waiting for what is over."""

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        ended, self._bonds.ended = self._bonds.ended, lambda *_: None  # type: ignore[method-assign]
        try:
            return await super().settle_letters(settlements)
        finally:
            self._bonds.ended = ended  # type: ignore[method-assign]


class FollowsUpTheKept(Bent):
    """The sender is told that it died, and then it runs again."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        for one, answer in zip(settlements, settled.answers, strict=True):
            if answer.verdict is Verdict.KEPT:
                await self.put(one.follow_ups)
        return settled


class FollowsUpTheCancelled(Bent):
    """The sender is told that it died, and it was cancelled."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        for one, answer in zip(settlements, settled.answers, strict=True):
            if answer.reason == "cancelled":
                await self.put(one.follow_ups)
        return settled


class FollowsUpOnlyTheDone(Bent):
    """A letter that was replayed elsewhere is over, and what was to run instead is lost."""

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        bare = [structs.replace(one, follow_ups=()) for one in settlements]
        pairs = zip(settlements, bare, strict=True)
        return await super().settle_letters([one if isinstance(one.decision, ToDone) else less for one, less in pairs])


class AuditsALetterApart(Bent):
    """Who dies between the two writes has ended a letter, and nobody can say who it was."""

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        answers = await super().settle_letters([structs.replace(one, audit=None) for one in settlements])
        pairs = zip(settlements, answers, strict=True)
        await self._clock.sleep(0)
        await self.append([one.audit for one, said in pairs if one.audit and said.verdict is Verdict.APPLIED])
        return answers


class AuditsWhatWasNotDone(Bent):
    """A repeat, or one that came too late, is in the audit as if it had been somebody's deed."""

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        await self.append([one.audit for one in settlements if one.audit is not None])
        return await super().settle_letters([structs.replace(one, audit=None) for one in settlements])


class OldestByEnqueueing(Bent):
    """Whoever died first waits behind those who were only put before it."""

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        return await super().ids(Not(Not(selection)) if oldest else selection, limit, cursor, oldest=oldest)

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        return await super().find(Not(Not(selection)) if oldest else selection, limit, cursor, oldest=oldest)


class TurnsRoundAtAnyPlace(Bent):
    """A cursor is taken for a place, whichever way it was walked to: what lies behind it comes again."""

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        right, wrong = Pages(selection, oldest), Pages(selection, not oldest)
        with suppress(ConfigError):
            place = read(wrong.order, wrong.opened(cursor))
            cursor = cursor if place is None else right.sealed(write(right.order, place))
        return await super().ids(selection, limit, cursor, oldest=oldest)


class GoesOnInAnySearch(Bent):
    """A cursor is taken for a place, whatever was asked for on the way to it: nobody looks at the seal."""

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        if cursor is not None:
            with suppress(ValueError):
                bare = base64.urlsafe_b64decode(cursor)[:-8].decode("ascii")
                cursor = Pages(selection, oldest).sealed(bare)
        return await super().find(selection, limit, cursor, oldest=oldest)
