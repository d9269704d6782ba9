"""All items with what is derived from them: due order, lease ends, counters, causes, letters by death.

`save` and `drop` are the only ways in, and both take an item's old share out of every index before the new one goes in.
So an index cannot disagree with the items, and no verb has to remember which counters it moves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import structs

from redrive.core.families import family_of, names_between
from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Attempt, Deed, History, Item, Revision
from redrive.core.lanes import rank_of
from redrive.core.states import Disposition, State
from redrive.core.terms import is_parked
from redrive.core.verbs import CauseTally, LetterChange
from redrive.stores.memory._agenda import Agenda
from redrive.stores.memory._changes import Changes
from redrive.stores.memory._lane import HELD, PARKED, PLAIN, Lane
from redrive.stores.memory._lines import Kept, Lines

PARKED_ORDER = "parked:order"

Key = tuple[str, str]
"""(queue, limit key)"""

Place = tuple[int, int]
"""Where an item stands in an order of `find`: (died_at or 0, seq)."""


@dataclass(slots=True)
class _Trail:
    attempts: list[Attempt] = field(default_factory=list)
    omitted: int = 0
    deeds: list[Deed] = field(default_factory=list)
    revisions: list[Revision] = field(default_factory=list)


class Table:
    def __init__(self, wake: Callable[[str], None]) -> None:
        self.items: dict[str, Item] = {}
        self.lanes: dict[str, Lane] = {}
        self.families: dict[str, Lane] = {}
        self.lines = Lines()
        self.changes = Changes()
        self.routes: Counter[str] = Counter()
        self.running: Counter[Key] = Counter()
        self.aside: dict[Key, Agenda] = {}
        self.kept: dict[str, Kept] = {}
        self._wake = wake
        self._seq = 0
        self._counted: dict[str, str] = {}
        self._trails: dict[str, _Trail] = {}
        self._ids: dict[int, str] = {}
        self._enqueued: list[Place] = []
        self._died: list[Place] = []
        self._causes: dict[tuple[str, str], list[Place]] = {}

    def declare(self, queue: str) -> Lane:
        lane = self.lanes.get(queue)
        if lane is None:
            lane = self.lanes[queue] = Lane(queue, family=self.families.get(family_of(queue)))
        return lane

    def declare_family(self, pattern: str) -> Lane:
        family = self.families.get(pattern)
        if family is None:
            family = self.families[pattern] = Lane(pattern)
            for lane in self.members(pattern):
                lane.family = family
                family.counts.update(lane.counts)
                if lane.counts[State.READY]:
                    family.turns.lower(lane.name)
        return family

    def members(self, pattern: str) -> list[Lane]:
        first, last = names_between(pattern)
        return [lane for name, lane in self.lanes.items() if first < name < last]

    def look_at(self, queue: str) -> None:
        """Something of it may be leased: a lease of its family shall look at it."""
        lane = self.lanes.get(queue)
        if lane is not None and lane.family is not None:
            lane.family.turns.lower(queue)

    def behind(self, gate: str) -> list[Lane]:
        """Queues behind a gate, families that give it to their members among them."""
        own = [lane for lane in (*self.lanes.values(), *self.families.values()) if lane.own.gate == gate]
        member = self.lanes.get(gate)
        return own if member is None or member.settings.gate != gate else [*own, member]

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    # --- writing ---

    def save(self, item: Item, *, is_change: bool = True) -> None:
        """`is_change`: unless it is only who works on a letter, a letter or what was one gets the next number."""
        before = self.items.get(item.id)
        if before is None:
            self._ids[item.seq] = item.id
            insort(self._enqueued, (0, item.seq))
        else:
            self._unlink(before)
            if before.state is State.LEASED is not item.state:
                self._make_room(before)
        self.items[item.id] = item
        self._link(item)
        if is_change and (item.letter is not None or (before is not None and before.letter is not None)):
            self.changes.note(item.id)

    def _make_room(self, ended: Item) -> None:
        """Whoever waits because so many run should look again."""
        lane = self.lanes[ended.queue]
        if lane.settings.max_running is not None:
            self._wake(ended.queue)
        if lane.family is not None and lane.family.own.max_running is not None:
            self._wake(lane.family.name)

    def drop(self, item: Item) -> None:
        self._unlink(item)
        del self.items[item.id]
        del self._ids[item.seq]
        del self._enqueued[bisect_left(self._enqueued, (0, item.seq))]
        self._trails.pop(item.id, None)
        if item.id in self.changes:
            self.changes.note(item.id)
        self.kept.pop(item.id, None)

    def _link(self, item: Item) -> None:
        lane = self.declare(item.queue)
        self._count(item, lane)
        if item.hold:
            if item.hold == "limit":
                self.aside.setdefault(limit_key(item), Agenda()).add(0, item.seq, item.id)
        elif item.state is State.READY:
            rank = rank_of(item)
            agenda = lane.ready.get(rank)
            if agenda is None:
                agenda = lane.ready[rank] = Agenda()
            agenda.add(item.due_at, item.seq, item.id)
            self._wake(item.queue)
        elif item.state is State.LEASED:
            lane.leased.add(item.lease_until or 0, item.seq, item.id)
            if item.terms is not None and item.terms.limit_key:
                self.running[limit_key(item)] += 1
        elif item.letter is not None:
            place = (item.letter.died_at, item.seq)
            insort(self._died, place)
            if item.letter.disposition is Disposition.OPEN:
                insort(self._causes.setdefault((item.letter.failure.cause, item.queue), []), place)
                self.routes[item.letter.route] += 1

    def _unlink(self, item: Item) -> None:
        lane = self.lanes[item.queue]
        lane.count(self._counted.pop(item.id), -1)
        if item.hold:
            if item.hold == "limit":
                self._take_from_aside(item)
        elif item.state is State.READY:
            rank = rank_of(item)
            agenda = lane.ready[rank]
            agenda.remove(item.id)
            if not agenda and rank != PLAIN:
                del lane.ready[rank]
        elif item.state is State.LEASED:
            lane.leased.remove(item.id)
            if item.terms is not None and item.terms.limit_key:
                self.running[limit_key(item)] -= 1
        elif item.letter is not None:
            place = (item.letter.died_at, item.seq)
            del self._died[bisect_left(self._died, place)]
            if item.letter.disposition is Disposition.OPEN:
                cause = (item.letter.failure.cause, item.queue)
                del self._causes[cause][bisect_left(self._causes[cause], place)]
                if not self._causes[cause]:
                    del self._causes[cause]
                self.routes[item.letter.route] -= 1

    def _take_from_aside(self, item: Item) -> None:
        key = limit_key(item)
        self.aside[key].remove(item.id)
        if not self.aside[key]:
            del self.aside[key]

    def _count(self, item: Item, lane: Lane) -> None:
        name = self._counted[item.id] = self.bucket(item)
        lane.count(name, 1)

    def bucket(self, item: Item) -> str:
        """The counter an item is in: its state; for a letter where it lies, for a hold whether it is backlog."""
        if item.letter is not None:
            return item.letter.disposition
        if not item.hold:
            return item.state
        return PARKED if is_parked(item.hold) or self.lines.is_parked(item) else HELD

    def recount(self, item_ids: Iterable[str]) -> None:
        """Their line was parked, or flows again."""
        for item_id in item_ids:
            item = self.items[item_id]
            lane = self.lanes[item.queue]
            lane.count(self._counted[item_id], -1)
            self._count(item, lane)

    def shown(self, item: Item) -> Item:
        """As those who ask see it: that a line is parked is written on none of its followers."""
        held = item.hold and not is_parked(item.hold)
        return structs.replace(item, hold=PARKED_ORDER) if held and self.lines.is_parked(item) else item

    # --- history ---

    def _trail(self, item_id: str) -> _Trail:
        trail = self._trails.get(item_id)
        if trail is None:
            trail = self._trails[item_id] = _Trail()
        return trail

    def add_attempt(self, item_id: str, attempt: Attempt) -> None:
        trail = self._trail(item_id)
        trail.attempts.append(attempt)
        if len(trail.attempts) > ATTEMPTS_FIRST + ATTEMPTS_LAST:
            del trail.attempts[ATTEMPTS_FIRST]
            trail.omitted += 1

    def set_trail(self, history: History) -> None:
        """Of one that came from another store; what was done to it there is another audit."""
        trail = _Trail(list(history.attempts), history.omitted, revisions=list(history.revisions))
        self._trails[history.item.id] = trail

    def add_deed(self, item_id: str, deed: Deed) -> None:
        self._trail(item_id).deeds.append(deed)

    def replace_revision(self, item_id: str, number: int, old: bytes, new: bytes) -> bool:
        """Whether it was still the old one."""
        revisions = self._trail(item_id).revisions
        if number >= len(revisions) or revisions[number].payload != old:
            return False
        revisions[number] = structs.replace(revisions[number], payload=new)
        return True

    def add_revision(self, item_id: str, revision: Revision) -> None:
        self._trail(item_id).revisions.append(revision)

    def has_deed(self, item_id: str, change: str, request_id: str) -> bool:
        trail = self._trails.get(item_id)
        return trail is not None and any((deed.change, deed.request_id) == (change, request_id) for deed in trail.deeds)

    def history(self, item: Item, blocked_by: tuple[str, ...]) -> History:
        trail = self._trails.get(item.id) or _Trail()
        return History(
            self.shown(item),
            tuple(trail.attempts),
            trail.omitted,
            tuple(trail.deeds),
            blocked_by,
            tuple(trail.revisions),
        )

    # --- reading ---

    def oldest_first(self) -> Iterator[Item]:
        return (self.items[self._ids[seq]] for _, seq in self._enqueued)

    def enqueued_after(self, seq: int, limit: int) -> list[Item]:
        start = bisect_right(self._enqueued, (0, seq))
        return [self.items[self._ids[place[1]]] for place in self._enqueued[start : start + limit]]

    def in_order(self, *, by_death: bool, oldest: bool, after: Place | None) -> Iterator[tuple[Place, Item]]:
        """From one end to the other, or on from a place."""
        places = self._died if by_death else self._enqueued
        if oldest:
            start = 0 if after is None else bisect_right(places, after)
            indexes = range(start, len(places))
        else:
            end = len(places) if after is None else bisect_left(places, after)
            indexes = range(end - 1, -1, -1)
        for index in indexes:
            place = places[index]
            yield place, self.items[self._ids[place[1]]]

    def present(self, ids: Iterable[str]) -> list[Item]:
        """Those of the ids that exist, each once, in the order given."""
        return [self.items[item_id] for item_id in dict.fromkeys(ids) if item_id in self.items]

    def last_change(self, number: int, item_id: str) -> LetterChange:
        item = self.items.get(item_id)
        return LetterChange(number, item_id, None if item is None else self.shown(item))

    def set_aside(self, queue: str) -> list[str]:
        """Those of the queue that wait for others of their limit key."""
        return [slot.id for key, agenda in self.aside.items() if key[0] == queue for slot in agenda.until(None)]

    def causes(self, queue: str | None) -> list[CauseTally]:
        rows = [self._cause(cause, where) for cause, where in self._causes if queue is None or where == queue]
        return sorted(rows, key=lambda row: (-row.count, row.cause, row.queue))

    def cause_counts(self) -> dict[tuple[str, str], int]:
        return {key: len(places) for key, places in self._causes.items()}

    def _cause(self, cause: str, queue: str) -> CauseTally:
        """The example is the letter that died first."""
        places = self._causes[cause, queue]
        (first_at, seq), (last_at, _) = places[0], places[-1]
        letter = self.items[self._ids[seq]].letter
        error, text = ("", "") if letter is None else (letter.failure.type, letter.failure.text)
        return CauseTally(cause, queue, len(places), error, text, first_at, last_at)


def limit_key(item: Item) -> Key:
    """Of an item without one, the key is empty."""
    return item.queue, "" if item.terms is None else item.terms.limit_key
