"""More planted bugs: dead letters, history, counters, writing and looking."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import structs

from redrive.core.acts import (
    Act,
    Amended,
    Cancel,
    Change,
    Replay,
)
from redrive.core.decide import Charge, ToDead, ToReady
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, History, Millis, NewItem
from redrive.core.select import Ids, Selection
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    LeaseRequest,
    Page,
    PutResult,
    Settled,
    Settlement,
    Tally,
    Tombstone,
    Verdict,
)
from redrive.stores.audit import word
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import sha256
from tests.stores.broken import Bent, breath

# --- endings and letters ---


class DiesInTwoSteps(Bent):
    """Taken out of the queue, then put into the dead letters: in between it is in neither."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        died = [item for it in settlements if (item := self.peek(it.id)) is not None and item.state is State.DEAD]
        for item in died:
            self.drop(item)
        await breath()
        for item in died:
            self.force(item)
        return settled


class CopiesThenRemoves(Bent):
    """Retry as a copy, then ack of the original: for a moment, and after a crash for good, there are two."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        copies = []
        for settlement in settlements:
            item = self.peek(settlement.id)
            if item is not None and isinstance(settlement.decision, ToDead):
                copies.append(structs.replace(item, id=f"{item.id}/copy", seq=self._table.next_seq()))
                self.force(copies[-1])
        await breath()
        for copy in copies:
            self.drop(copy)
        return await super().settle(settlements, then)


class ReleaseCharges(Bent):
    """Every deploy costs each running item an attempt."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        bent = [
            structs.replace(it, decision=structs.replace(it.decision, charge=Charge.ERROR))
            if isinstance(it.decision, ToReady) and it.decision.charge is Charge.NOTHING
            else it
            for it in settlements
        ]
        return await super().settle(bent, then)


class EvictsLetters(Bent):
    """Sidekiq, asynq: the dead set is trimmed by rank."""

    CAP = 100

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        letters = sorted((item for item in self._table.items.values() if item.letter), key=lambda item: item.seq)
        for item in letters[: -self.CAP]:
            self.drop(item)
        return settled


class TrimsTheWrongEnd(Bent):
    """Of a long history the last failures go: the ones that say why it does not work now."""

    async def get(self, item_id: str) -> History:
        history = await super().get(item_id)
        if not history.omitted:
            return history
        first = history.attempts[: ATTEMPTS_FIRST + ATTEMPTS_LAST - history.omitted]
        return structs.replace(history, attempts=first + history.attempts[: history.omitted])


class ForgetsTheEvidence(Bent):
    """BullMQ: sending it back wipes why it failed."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        for item_id in amended.changed if isinstance(change, Replay) else ():
            self._table._trails.pop(item_id, None)  # noqa: SLF001 - the bug reaches where no verb does
        return amended


# --- the office ---


class ReplaysEveryTime(Bent):
    """The same request again sends the letter back again."""

    _calls = 0

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        self._calls += 1
        return await super().amend(
            selection, change, structs.replace(by, request_id=f"{by.request_id}/{self._calls}"), expect
        )


class OneActForARequest(Bent):
    """The second act under a ticket's number is dropped, as if it had been done."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        if isinstance(selection, Ids):
            deeds = {one: (await self.get(one)).deeds for one in selection.ids if self.peek(one)}
            done = [one for one in deeds if by.request_id in {deed.request_id for deed in deeds[one]}]
            left = tuple([one for one in selection.ids if one not in done])
            amended = await super().amend(Ids(left), change, by, expect)
            return structs.replace(amended, already=(*amended.already, *done))
        return await super().amend(selection, change, by, expect)


class KnowsARequestByItsBeginning(Bent):
    """Ticket 1 is taken for a repeat of ticket 10."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        ids = tuple(filter(self.peek, selection.ids)) if isinstance(selection, Ids) else ()
        for item_id in ids:
            for deed in (await self.get(item_id)).deeds:
                if deed.change == word(change) and deed.request_id.startswith(by.request_id):
                    return Amended(already=ids)
        return await super().amend(selection, change, by, expect)


class IgnoresExpect(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        return await super().amend(selection, change, by, None)


class ReplaysAsACopy(Bent):
    """pg-boss: deleted from the dead letters, then inserted, with do nothing on conflict."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        amended = await super().amend(selection, change, by, expect)
        for item_id in amended.changed if isinstance(change, Replay) else ():
            item = self.peek(item_id)
            assert item is not None
            self.drop(item)
            await breath()
            self.force(structs.replace(item, seq=self._table.next_seq()))
        return amended


class AmendsWhatIsHeld(Bent):
    """Cancelling a running item under its holder's hands."""

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        for item_id in selection.ids if isinstance(selection, Ids) and isinstance(change, Cancel) else ():
            item = self.peek(item_id)
            if item is not None and item.state is State.LEASED:
                self.force(structs.replace(item, state=State.READY, lease_until=None))
        return await super().amend(selection, change, by, expect)


class AuditsNothing(Bent):
    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        journal, self._journal = self._journal, MemoryStore()._journal  # noqa: SLF001 - thrown away
        try:
            return await super().amend(selection, change, by, expect)
        finally:
            self._journal = journal


class PrunesLettersLikeDone(Bent):
    """Oban, GoodJob: the pruner takes dead for done."""

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        for item in tuple(self._table.items.values()):
            if item.letter is not None:
                self.force(structs.replace(item, letter=structs.replace(item.letter, disposition=Disposition.TRASH)))
        return await super().prune(selection, limit, by)


class PrunesWithoutATrace(Bent):
    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        stones = await super().prune(selection, limit, by)
        self._tombstones.clear()
        return stones


class FindsByOffset(Bent):
    """Sidekiq < 8.1.2: going through a set while others take from it skips entries."""

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        start = int(cursor or 0)
        items = (await super().find(selection, 1_000, oldest=oldest)).items[start : start + limit + 1]
        return Page(items[:limit], str(start + limit) if len(items) > limit else None, len(items))


# --- writing ---


class ReencodesPayloads(Bent):
    """JSON in, JSON out: the same for people, not for a signature."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        return await super().put([structs.replace(item, payload=_again(item.payload)) for item in items])


def _again(payload: bytes) -> bytes:
    try:
        return json.dumps(json.loads(payload)).encode()
    except (ValueError, RecursionError):
        return payload


class ShowsWhatItKeeps(Bent):
    """Large payloads are packed, and one of the verbs forgets to unpack them."""

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        page = await super().find(selection, limit, cursor, oldest=oldest)
        packed = [structs.replace(item, payload=zlib.compress(item.payload)) for item in page.items]
        items = [kept if len(item.payload) > 65_536 else item for item, kept in zip(page.items, packed, strict=True)]
        return structs.replace(page, items=tuple(items))


class DigestsWhatItKeeps(Bent):
    """The tombstone names a digest that nobody who has the payload can find."""

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        kept = {item.id: zlib.compress(item.payload) for item in (await self.find(selection, 1_000)).items}
        stones = await super().prune(selection, limit, by)
        return tuple(structs.replace(stone, payload_sha256=sha256(kept[stone.id])) for stone in stones)


class PutsOneByOne(Bent):
    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        results = [await super(PutsOneByOne, self).put([item]) for item in items]
        return PutResult(
            tuple(item_id for result in results for item_id in result.added),
            tuple(item_id for result in results for item_id in result.already),
        )


class PutOverwrites(Bent):
    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        result = await super().put(items)
        for item in items:
            there = self.peek(item.id)
            if there is not None and item.id in result.already:
                self.force(structs.replace(there, payload=item.payload, due_at=self.now() + item.delay))
        return result


class SwallowsCommitErrors(Bent):
    """The write failed, the caller was told that it is safe."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        result = await super().put(items)
        for item_id in result.added:
            item = self.peek(item_id)
            assert item is not None
            self.drop(item)
        return result


class DriftsByTheRefused(Bent):
    """Counters that count what was asked, not what was done."""

    _extra = 0

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        self._extra += sum(answer.verdict is not Verdict.APPLIED for answer in settled.answers)
        return settled

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        tally = await super().tally(members=members)
        rows = tuple(structs.replace(row, done=row.done + self._extra) for row in tally.queues)
        return structs.replace(tally, queues=rows)


class DeafToPuts(Bent):
    """Waits out its time, whatever comes."""

    async def wait(
        self,
        queues: Sequence[str],
        timeout: Millis,
        kinds: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        await self._clock.sleep(timeout)


class FallsBackToMemory(Bent):
    """The database is not there, so every handle quietly works in its own memory."""

    @staticmethod
    def handle(clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)
