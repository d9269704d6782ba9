"""Acts of people on items that nobody holds: which are legal, and what becomes of the items."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import structs

from redrive.core.acts import (
    MISSING,
    NOT_HEAD,
    Act,
    Amended,
    Change,
    Discard,
    Edit,
    Move,
    Park,
    Recall,
    Refusal,
    Replay,
    RunNow,
    Skip,
    Skipped,
    Tag,
    Unpark,
    edit_refusal,
    key_held,
    parked_refusal,
    recall_refusal,
    refusal,
)
from redrive.core.item import Deed, History, Instant, Item, Revision, holder
from redrive.core.terms import dedupe_place, is_parked
from redrive.core.verbs import PutResult
from redrive.stores import audit
from redrive.stores.checks import (
    KEEPS_BACK,
    TAGS_LIMIT,
    bound_to,
    tagged,
    there_already,
    too_many_tags,
    waits_for_stranger,
    waits_in_vain,
)
from redrive.stores.memory import _moves
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._dedupe import Place
from redrive.stores.memory._lines import Kept
from redrive.stores.memory._table import Table


class Acts:
    def __init__(self, table: Table, bonds: Bonds, tombstones: Container[str]) -> None:
        self._table = table
        self._bonds = bonds
        self._tombstones = tombstones

    # --- which are legal ---

    def judge(self, ids: tuple[str, ...], change: Change, by: Act, now: Instant) -> Amended:
        changed: list[str] = []
        already: list[str] = []
        skipped: list[Skipped] = []
        claimed: dict[Place, str] = {}
        for item_id in ids:
            item = self._table.items.get(item_id)
            if item is None:
                skipped.append(Skipped(item_id, *MISSING))
            elif self._table.has_deed(item_id, audit.word(change), by.request_id):
                already.append(item_id)
            elif reason := self._refusal(item, change, claimed, now):
                skipped.append(Skipped(item_id, *reason))
            else:
                changed.append(item_id)
        return Amended(tuple(changed), tuple(already), tuple(skipped))

    def _refusal(self, item: Item, change: Change, claimed: dict[Place, str], now: Instant) -> Refusal | None:
        """`claimed`: dedupe keys of those that go back by the same act."""
        disposition = None if item.letter is None else item.letter.disposition
        reserved = "" if item.letter is None else item.letter.reserved
        reason = refusal(change, item.state, disposition, holder=holder(item, now), reserved=reserved)
        if reason is not None:
            return reason
        match change:
            case Skip():
                dead_head = self._bonds.is_dead_head(item)
                return None if dead_head else NOT_HEAD
            case Move(queue):
                return there_already(queue) if queue == item.queue else self._tied(item)
            case Replay():
                return (
                    self._elsewhere(item, change)
                    or self._waiting(item, change)
                    or self._twin(item, change, claimed, now)
                )
            case Recall():
                kept = self._table.kept.get(item.id)
                return recall_refusal(item.state, item.deliveries, None if kept is None else kept.letter.deliveries)
            case Tag():
                count = len(tagged(item.tags, change))
                return too_many_tags(count) if count > max(TAGS_LIMIT, len(item.tags)) else None
            case RunNow() | Unpark():
                return parked_refusal(change, parked=is_parked(item.hold))
            case Edit():
                return edit_refusal(change, item.revision)
            case _:
                return None

    def _tied(self, item: Item) -> Refusal | None:
        """What binds a letter to its queue."""
        if self._bonds.keeps_back(item):
            return KEEPS_BACK
        ordered = item.terms is not None and bool(item.terms.order_key)
        return bound_to(item.queue) if ordered and self._bonds.was_awaited(item) else None

    def _elsewhere(self, item: Item, change: Replay) -> Refusal | None:
        return self._tied(item) if change.queue not in {"", item.queue} else None

    def _waiting(self, item: Item, change: Replay) -> Refusal | None:
        if change.force or item.terms is None:
            return None
        for one in item.terms.after:
            if self._bonds.hopeless(one):
                return waits_in_vain(one)
            if not self._bonds.known(one):
                return waits_for_stranger(one)
        return None

    def _twin(self, item: Item, change: Replay, claimed: dict[Place, str], now: Instant) -> Refusal | None:
        place = None if item.terms is None else dedupe_place(change.queue or item.queue, item.terms)
        if place is None:
            return None
        holder = claimed.get(place) or self._bonds.keys.holder(place, now)
        if holder is not None and not change.force:
            return key_held(holder)
        claimed.setdefault(place, item.id)
        return None

    # --- what becomes of them ---

    def change(self, ids: Sequence[str], change: Change, by: Act, now: Instant) -> None:
        moved: list[tuple[Item, Item]] = []
        parked: list[Item] = []
        recalled: list[tuple[Item, Kept]] = []
        for item_id in ids:
            before = self._table.items[item_id]
            after = _moves.amended(before, change, by, now)
            self._table.add_deed(item_id, Deed(now, audit.word(change), by.actor, by.reason, by.request_id))
            if isinstance(change, Recall):
                recalled.append((before, self._table.kept.pop(item_id)))
                continue
            if isinstance(change, Replay):
                letter = structs.replace(before, deliveries=after.deliveries)
                self._table.kept[item_id] = self._table.lines.kept(letter)
            if after.queue != before.queue:
                self._bonds.moves(before, after.queue)
            if isinstance(change, Replay):
                self._bonds.replayed(after, now, force=change.force)
                continue
            self._keep_revision(before, change, by, now)
            self._table.save(after)
            self._bind_again(after, change)
            if after.state is not before.state:
                moved.append((before, after))
            elif isinstance(change, Park):
                parked.append(before)
        self._bonds.ended(moved, now)
        self._bonds.parked(parked)
        self._bonds.recalled(recalled, now)

    def _keep_revision(self, before: Item, change: Change, by: Act, now: Instant) -> None:
        if isinstance(change, Edit):
            kept = Revision(before.revision, before.payload, now, by.actor, by.reason)
            self._table.add_revision(before.id, kept)

    def _bind_again(self, after: Item, change: Change) -> None:
        """What the change means for its line."""
        if isinstance(change, Discard):
            self._bonds.discarded(after)
        elif isinstance(change, Skip):
            self._bonds.next_head(after, gap=after.id)
        elif isinstance(change, Unpark):
            self._bonds.unparked(after)

    def take_in(self, histories: Sequence[History], by: Act, now: Instant) -> PutResult:
        added: list[str] = []
        already: list[str] = []
        for history in histories:
            item_id = history.item.id
            if item_id in self._table.items or item_id in self._tombstones:
                already.append(item_id)
                continue
            self._bonds.took_in(structs.replace(history.item, seq=self._table.next_seq()))
            self._table.set_trail(history)
            self._table.add_deed(item_id, Deed(now, audit.IMPORT, by.actor, by.reason, by.request_id))
            added.append(item_id)
        return PutResult(tuple(added), tuple(already))
