"""Replay of letters through the store: claims, then each letter is sent or stays an unchanged letter.

A letter that does not change is the same item again (one `amend`). Any other becomes a new item, put in the write that
ends the letter. It leaves the store in two steps, around the send of the door: the id of the item there follows from
the letter, so that a repetition after a crash adds nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from redrive.core import durations
from redrive.core import outcome as o
from redrive.core.acts import (
    Act,
    Refusal,
    Replay,
    Skipped,
)
from redrive.core.item import History, Item, Millis, NewItem, holder
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import (
    NewEntry,
    Settlement,
    Verdict,
)
from redrive.engine.evidence import text_of
from redrive.engine.ids import new_id
from redrive.engine.letter_source import at_death
from redrive.engine.report import decision_on, settlement_of
from redrive.engine.store_retry import retry_unknown
from redrive.errors import NotFound, OutcomeUnknown
from redrive.office.in_place_job import why_not
from redrive.office.replay import claims
from redrive.stores.audit import AuditRecord, entry
from redrive.stores.base import Store
from redrive.stores.clock import Clock

BATCH = 50
"""Letters per batch: read, planned, claimed and written at once."""
TTL: Millis = 60_000
GRACE: Millis = 60 * 60 * 1000
"""The claim of a letter that is still one is taken over after this time: the process that made it has died."""
TAKEN = Refusal("another process leased or replayed it first", "leased")

Steps = Generator[tuple[Callable[..., Coroutine[Any, Any, Any]], tuple[Any, ...]], Any, None]
"""Store calls for the event loop. The generator itself, which calls user functions, runs in a thread."""


@dataclass
class Candidate:
    """A letter to replay. `key`: the dedupe key, of which one letter is replayed. `replays`: how often it was replayed
    before, as this item and as the letters that it was. `subject`: the argument for functions of the door's users.
    """

    history: History
    key: str | None
    replays: int
    subject: Any = None

    @property
    def item(self) -> Item:
        return self.history.item

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def way(self) -> str:
        """Name of the claim on the destination, one for each death of the letter."""
        return claims.name_of("way", self.id, self.item.replays)

    def claim_on(self, queue: str) -> str | None:
        """Name of the claim on the key, which one letter can have."""
        return None if self.key is None else claims.name_of(queue, self.key, self.replays + 1)

    def own_id(self, queue: str) -> str:
        """An item id for this death of the letter: put again, it adds nothing."""
        return claims.name_of(queue, self.id, self.item.replays)


@dataclass(frozen=True)
class Plan:
    """Without `item` the letter goes as it is. `away`: out of the store. `destination`: queue and store, by a name that
    is the same in every process.
    """

    letter: Candidate
    queue: str
    destination: str
    item: NewItem | None = None
    away: bool = False


class LetterReplay(ABC):
    """One replay and its results. A subclass selects the letters and plans each.

    `held`: the caller has leased the letters. `change`: for letters that go as they are. `done` has the ids of the
    items that the letters became, the others have their reasons.
    """

    same, anyway = "with the same dedupe key", "without dedupe_by"
    failed, missing = "it could not be sent", "no such item"
    caught_in_plan: type[BaseException] = Exception
    fatal_in_plan: tuple[type[Exception], ...] = ()
    fatal_in_send: tuple[type[Exception], ...] = ()
    """Errors that end the whole replay; others only keep their letter."""
    lineage_in_audit = False

    def __init__(
        self, store: Store, clock: Clock, worker: str, act: Act, *, dedupe: bool, change: Replay, dry_run: bool = False
    ) -> None:
        self.store, self.clock, self.worker, self.act = store, clock, worker, act
        self.dedupe, self.change, self.dry_run, self.held = dedupe, change, dry_run, False
        self.done: list[tuple[Plan, str]] = []
        self.already: list[str] = []
        self.duplicates: list[tuple[Plan, str]] = []
        self.skipped: list[Skipped] = []
        self.kept: list[Skipped] = []
        self._unsent: set[str] = set()
        """Letters that this call did not send for certain, so that it withdraws its claims on their keys."""
        self._claimed_by = new_id()
        self._owners: dict[str, str] = {}
        """In a dry run, the owners that claims would have."""

    @abstractmethod
    def refused(self, item: Item) -> Refusal | None:
        """Why an item is not a letter of this replay; None if it is."""

    @abstractmethod
    def replays_of(self, item: Item) -> int:
        """See Candidate."""

    @abstractmethod
    def plan(self, history: History) -> Plan | Refusal | None:
        """The plan of a letter, or why it is kept; None if it is not part of the replay."""

    def send(self, plan: Plan) -> tuple[str, str]:
        """Send a plan that is `away`. Returns its id there, or the other letter of its key that arrived before."""
        raise NotImplementedError

    def keep(self, letter_id: str, why: str, error: BaseException) -> None:
        kind = type(error)
        words = f"{why}: {kind.__module__}.{kind.__qualname__}: {text_of(error)}"
        self.kept.append(Skipped(letter_id, words, "error"))

    def replay_ids(self, ids: Sequence[str], limit: int | None = None) -> Steps:
        """Replay letters in the order of their ids; at most `limit`."""
        for start in range(0, len(ids), BATCH):
            room = len(ids) if limit is None else limit - len(self.done)
            if room <= 0:
                return
            found = yield read, (self.store, ids[start : start + BATCH], self.refused, self.missing)
            self.skipped += [each for each in found if isinstance(each, Skipped)]
            yield from self.replay([each for each in found if isinstance(each, History)], room)

    def replay(self, letters: Sequence[History], room: int) -> Steps:
        """Replay letters that were read. What cannot be planned is kept before it claims anything."""
        plans: list[Plan] = []
        for history in letters:
            try:
                plan = self.plan(history) if len(plans) < room else None
            except self.fatal_in_plan:
                raise
            except self.caught_in_plan as error:  # of a user function: its letter stays one
                self.keep(history.item.id, self.failed, error)
                continue
            if isinstance(plan, Refusal):
                self.kept.append(Skipped(history.item.id, *plan))
            elif plan is not None:
                plans.append(plan)
        plans = yield self._claimed, (plans,)
        yield self._go, (plans,)
        for plan in plans if not self.dry_run else ():
            try:
                if plan.away:
                    yield from self._send_away(plan)
            except self.fatal_in_send:
                raise
            except Exception as error:  # noqa: BLE001 - the failure of one letter does not stop the others
                self.keep(plan.letter.id, self.failed, error)
        yield self._withdraw_unsent, (plans,)

    def _send_away(self, plan: Plan) -> Steps:
        """Put it into the other store, then end it here: in between it is in both stores."""
        begun = yield self._begin, (plan,)
        if begun is None:
            return
        item, before = begun
        try:
            key, other = self.send(plan)
        except Exception as error:
            arrived = before or isinstance(error.__cause__, OutcomeUnknown)
            yield self._give_up, (plan, item, not arrived)
            raise
        if other:
            yield self._give_up, (plan, item, not before)
            self._duplicate(plan, other)
        else:
            yield self._settle, ([self._end(item, plan, key)], [(plan, key)])

    # --- claims -----------------------------------------------------------------------------------------------------

    async def _claimed(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans that may go: none whose replay to elsewhere was begun, and for each key the one with the claim."""
        plans = [plan for plan in plans if not await self._begun_elsewhere(plan)]
        keys = [self._claim_of(plan) for plan in plans]
        wanted: dict[str, str] = {}
        for plan, key in zip(plans, keys, strict=True):
            if key is not None:
                wanted.setdefault(key, plan.letter.id)
        owners = await self._claim(wanted) if wanted else {}
        free: list[Plan] = []
        for plan, key in zip(plans, keys, strict=True):
            owner, pending = plan.letter.id if key is None else owners[key], ""
            if key is not None and owner == plan.letter.id != wanted[key]:
                # Another call claimed it for this letter. This call sends it as well: it must have the claim, too.
                owner = owners[key] = (await self._claim({key: owner}))[key]
            elif key is not None and self.dedupe and owner not in (plan.letter.id, wanted[key]):
                owner, pending = await self._take_over(plan, key)
                owners[key] = owner
            if owner == plan.letter.id:
                free.append(plan)
            elif self.dedupe or plan.item is None:
                self._duplicate(plan, owner, pending)
            else:
                free.append(replace(plan, item=structs.replace(plan.item, id=plan.letter.own_id(plan.queue))))
        return free

    async def _withdraw_unsent(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            key = self._claim_of(plan) if plan.letter.id in self._unsent else None
            # Without `dedupe` the claim may be that of another letter, which was sent.
            if key is None or await claims.claimed(self.store, key) != plan.letter.id:
                continue
            if not await self._was_sent(plan.letter):
                await self._withdraw(key)

    def _claim_of(self, plan: Plan) -> str | None:
        # On another store the item of a key has the same id, with `dedupe` and without.
        return plan.letter.claim_on(plan.queue) if self.dedupe or (plan.away and plan.item is not None) else None

    async def _claim(self, wanted: dict[str, str]) -> dict[str, str]:
        if self.dry_run:
            for name in wanted.keys() - self._owners.keys():
                self._owners[name] = await claims.claimed(self.store, name) or wanted[name]
            return {name: self._owners[name] for name in wanted}
        now = self.clock.now()
        owners, _ = await retry_unknown(lambda: claims.claim(self.store, wanted, now, self._claimed_by))
        return owners

    async def _withdraw(self, name: str) -> None:
        await retry_unknown(lambda: claims.withdraw(self.store, name, self._claimed_by))

    async def _was_sent(self, letter: Candidate) -> bool:
        """Another call sent it, perhaps without a claim: it was replayed since, or has ended as done."""
        try:
            item = (await self.store.get(letter.id)).item
        except NotFound:
            return True  # it ended, and was pruned
        return item.replays != letter.item.replays or item.state is State.DONE

    async def _take_over(self, plan: Plan, key: str) -> tuple[str, str]:
        """The owner of a claim that another letter had, and the time after which it can be taken over if not yet.

        A process that claimed it for a letter that is still one has died before it sent anything, or is slow.
        """
        seen = await claims.found(self.store, key)
        if self.dry_run and self._owners[key] != (seen and seen.owner):
            return self._owners[key], ""
        if seen is None:  # it was withdrawn just now
            return (await self._claim({key: plan.letter.id}))[key], ""
        if not await self._came_to_nothing(plan, seen.owner):
            return seen.owner, ""
        now = self.clock.now()
        left = seen.since + GRACE - now
        if left > 0:
            return seen.owner, durations.brief(-(-left // 1000) * 1000)
        if self.dry_run:
            self._owners[key] = plan.letter.id
            return plan.letter.id, ""
        new = claims.Claim(plan.letter.id, now, self._claimed_by, now)
        owner, _ = await retry_unknown(lambda: claims.take_over(self.store, key, seen, new))
        return owner, ""

    async def _came_to_nothing(self, plan: Plan, owner: str) -> bool:
        """The owner of the claim is still a letter: not leased, not replayed since, and not on its way to elsewhere."""
        try:
            history = await self.store.get(owner)
        except NotFound:
            return False
        item = history.item
        if item.letter is None or holder(item, self.clock.now()) or self.replays_of(item) != plan.letter.replays:
            return False
        return await claims.claimed(self.store, Candidate(history, None, 0).way) is None

    def _duplicate(self, plan: Plan, other: str, pending: str = "") -> None:
        """`pending`: the time after which it may go instead of the other, if that is still a letter then."""
        why = f"{other}, {self.same}, was replayed to {plan.queue}, or is about to be"
        if pending:
            why = (
                f"{other}, {self.same}, has a replay to {plan.queue} that was begun and has not ended: "
                f"replay that one; or this one in {pending}, or {self.anyway}"
            )
        self.duplicates.append((plan, why))

    async def _begun_elsewhere(self, plan: Plan) -> bool:
        if not self.dedupe or plan.letter.item.deliveries <= at_death(plan.letter.history)[1]:
            return False  # it was not leased since its death
        begun = await claims.claimed(self.store, plan.letter.way)
        return begun is not None and self._is_elsewhere(plan, begun)

    def _is_elsewhere(self, plan: Plan, begun: str) -> bool:
        """A replay that was begun may have arrived: to send the letter to another destination would double it."""
        if begun == plan.destination:
            return False
        hint = f"replay it to that one, or {self.anyway} to this one as well"
        words = f"its replay to {begun} was begun, and may have arrived: {hint}"
        self.kept.append(Skipped(plan.letter.id, words, "begun"))
        return True

    # --- writes -----------------------------------------------------------------------------------------------------

    async def _go(self, plans: Sequence[Plan]) -> None:
        """Replay those that stay on this store."""
        if self.dry_run:
            self.done += [(plan, plan.letter.id if plan.item is None else plan.item.id) for plan in plans]
            return
        await self._amend([plan for plan in plans if plan.item is None and not plan.away])
        await self._settle_here([plan for plan in plans if plan.item is not None and not plan.away])

    async def _amend(self, plans: list[Plan]) -> None:
        """Back to work with all its history, in its own queue or another."""
        groups: dict[str, dict[str, Plan]] = defaultdict(dict)
        for plan in plans:
            groups[plan.queue if plan.letter.item.queue != plan.queue else ""][plan.letter.id] = plan
        for queue, those in groups.items():
            change, ids = structs.replace(self.change, queue=queue), Ids(tuple(those))
            amended, _ = await retry_unknown(lambda ids=ids, change=change: self.store.amend(ids, change, self.act))  # type: ignore[misc]
            self.done += [(those[each], each) for each in (*amended.changed, *amended.already)]
            self.already += amended.already
            self._skip(amended.skipped)

    async def _settle_here(self, plans: list[Plan]) -> None:
        """The letters end and the items exist, in one write."""
        leased = await self._lease([plan.letter for plan in plans]) if plans else {}
        those = [(plan, plan.item) for plan in plans if plan.item is not None and plan.letter.id in leased]
        if those:
            ends = [self._end(leased[plan.letter.id], plan, item.id, item) for plan, item in those]
            await self._settle(ends, [(plan, item.id) for plan, item in those])

    async def _begin(self, plan: Plan) -> tuple[Item, bool] | None:
        """The leased letter with the claim on its destination, and whether an earlier replay had that already."""
        item = (await self._lease([plan.letter])).get(plan.letter.id)
        if item is None:
            return None
        begun = await claims.claimed(self.store, plan.letter.way)
        if begun is None:
            await self._claim({plan.letter.way: plan.destination})
        elif self.dedupe and self._is_elsewhere(plan, begun):
            await self._give_up(plan, item, unsent=False)
            return None
        return item, begun is not None

    async def _give_up(self, plan: Plan, item: Item, unsent: bool) -> None:  # noqa: FBT001 - a step has no names
        """Give the lease back, unless it is the caller's. `unsent`: it is known not to have arrived."""
        letter = plan.letter
        if unsent:
            self._unsent.add(letter.id)
            await self._withdraw(letter.way)
        if self.held:
            return
        # A letter that was put off is put off again.
        rest = max(0, (letter.item.lease_until or 0) - self.clock.now()) if letter.item.worker == "" else 0
        free = Settlement(item.id, item.deliveries, decision_on(item, o.Release(after=rest)))
        await retry_unknown(lambda: self.store.settle_letters([free]))

    async def _lease(self, letters: list[Candidate]) -> dict[str, Item]:
        """The leased letters by id, also those that a consumer put off. Those that others hold are skipped."""
        if self.held:
            return {letter.id: letter.item for letter in letters}
        worker, wanted = f"{self.worker}-replay-{new_id()[:8]}", [letter.id for letter in letters]
        reserved = self.change.reserved
        items, _ = await retry_unknown(
            lambda: self.store.lease_letters(wanted, worker, TTL, early=True, reserved=reserved)
        )
        leased, now = {item.id: item for item in items}, self.clock.now()
        others = [letter for letter in letters if letter.id not in leased]
        whys = [why_not(each.item, now, early=True, reserved=reserved) or TAKEN for each in others]
        self._skip([Skipped(each.id, *why) for each, why in zip(others, whys, strict=True)])
        return leased

    def _skip(self, those: Iterable[Skipped]) -> None:
        for each in those:
            self.skipped.append(each)
            self._unsent.add(each.id)

    def _end(self, item: Item, plan: Plan, key: str, follow_up: NewItem | None = None) -> Settlement:
        note = f"replayed to {plan.queue} as {key} by {self.act.actor}: {self.act.reason}"
        follow_ups = () if follow_up is None else (follow_up,)
        made = settlement_of(item, o.Done(), worker=self.worker, note=note, follow_ups=follow_ups)
        ids = (item.id, key) if self.lineage_in_audit else (item.id,)
        detail = self.change if self.change.reserved else None
        return structs.replace(made, audit=audit_entry("replay", self.act, *ids, detail=detail))

    async def _settle(self, ends: list[Settlement], sent: list[tuple[Plan, str]]) -> None:
        answers, first = await retry_unknown(lambda: self.store.settle_letters(ends))
        # `already` is by an earlier try of this call; unless the caller holds the lease, and has ended it before.
        ours = (Verdict.APPLIED,) if self.held and first else (Verdict.APPLIED, Verdict.ALREADY)
        for (plan, key), answer in zip(sent, answers, strict=True):
            if answer.verdict in ours:
                self.done.append((plan, key))
            else:
                self.skipped.append(Skipped(plan.letter.id, *TAKEN))


async def read(
    store: Store, wanted: Sequence[str], refused: Callable[[Item], Refusal | None], missing: str
) -> list[History | Skipped]:
    """Letters with their history, or why they cannot be replayed."""

    async def one(item_id: str) -> History | Skipped:
        try:
            history = await store.get(item_id)
        except NotFound:
            return Skipped(item_id, missing, "missing")
        why = refused(history.item)
        return history if why is None else Skipped(item_id, *why)

    return await asyncio.gather(*[one(each) for each in wanted])


def audit_entry(word: str, act: Act, *ids: str, detail: Replay | None = None) -> NewEntry:
    """The audit entry of a letter that ends, for the write that ends it. `ids`: the letter, and the item it became."""
    return entry(AuditRecord(word, Ids(ids[:1]), ids, detail), act)


def drive(steps: Steps, call: Callable[..., Any]) -> None:
    """Run the store calls by `call`, which blocks, and what is between them in this thread."""
    resume: Callable[[Any], Any] = steps.send
    answer: Any = None
    while True:
        try:
            function, args = resume(answer)
        except StopIteration:
            return
        try:
            resume, answer = steps.send, call(function, *args)
        except Exception as error:  # noqa: BLE001 - the steps decide what it means
            resume, answer = steps.throw, error
