"""All items with what is derived from them: due order, lease ends, counters, causes, letters by death.

`save` and `drop` are the only ways in, and both take an item's old share out of every index before the new one goes in.
So an index cannot disagree with the items, and no verb has to remember which counters it moves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from redrive.core.item import ATTEMPTS_FIRST, ATTEMPTS_LAST, Attempt, Deed, History, Instant, Item
from redrive.core.states import Disposition, State
from redrive.core.verbs import CauseTally, Finding, QueueTally
from redrive.stores.findings import Findings
from redrive.stores.memory._agenda import Agenda, Slot

Place = tuple[int, int]
"""Where an item stands in an order of `find`: (died_at or 0, seq)."""


@dataclass(slots=True)
class Lane:
    """One declared queue. Ready items lie apart by their crashes, because each request draws its own line there."""

    name: str
    ready: dict[int, Agenda] = field(default_factory=dict)
    leased: Agenda = field(default_factory=Agenda)
    counts: Counter[str] = field(default_factory=Counter)
    paused: bool = False
    paused_by: str = ""
    paused_reason: str = ""

    def first_ready(self, crashes_from: int = 0, crashes_below: int | None = None) -> Slot | None:
        firsts = (
            agenda.first()
            for crashes, agenda in self.ready.items()
            if crashes >= crashes_from and (crashes_below is None or crashes < crashes_below)
        )
        return min((slot for slot in firsts if slot is not None), default=None)

    def next_change(self) -> Instant | None:
        """When to look again: the earliest due time, past or to come."""
        first = None if self.paused else self.first_ready()
        return None if first is None else first.when

    def tally(self) -> QueueTally:
        oldest = self.first_ready()
        return QueueTally(
            queue=self.name,
            ready=self.counts[State.READY],
            leased=self.counts[State.LEASED],
            done=self.counts[State.DONE],
            open=self.counts[Disposition.OPEN],
            archived=self.counts[Disposition.ARCHIVED],
            trash=self.counts[Disposition.TRASH],
            cancelled=self.counts[State.CANCELLED],
            oldest_due=None if oldest is None else oldest.when,
            paused=self.paused,
            paused_by=self.paused_by,
            paused_reason=self.paused_reason,
        )


@dataclass(slots=True)
class _Trail:
    attempts: list[Attempt] = field(default_factory=list)
    omitted: int = 0
    deeds: list[Deed] = field(default_factory=list)


def bucket(item: Item) -> str:
    """The counter an item is counted in: its state, for a letter where it lies."""
    return item.state if item.letter is None else item.letter.disposition


class Table:
    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.lanes: dict[str, Lane] = {}
        self._seq = 0
        self._trails: dict[str, _Trail] = {}
        self._ids: dict[int, str] = {}
        self._enqueued: list[Place] = []
        self._died: list[Place] = []
        self._causes: dict[tuple[str, str], list[Place]] = {}

    def declare(self, queue: str) -> Lane:
        lane = self.lanes.get(queue)
        if lane is None:
            lane = self.lanes[queue] = Lane(queue)
        return lane

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    # --- writing ---

    def save(self, item: Item) -> None:
        before = self.items.get(item.id)
        if before is None:
            self._ids[item.seq] = item.id
            insort(self._enqueued, (0, item.seq))
        else:
            self._unlink(before)
        self.items[item.id] = item
        self._link(item)

    def drop(self, item: Item) -> None:
        self._unlink(item)
        del self.items[item.id]
        del self._ids[item.seq]
        del self._enqueued[bisect_left(self._enqueued, (0, item.seq))]
        self._trails.pop(item.id, None)

    def _link(self, item: Item) -> None:
        lane = self.declare(item.queue)
        lane.counts[bucket(item)] += 1
        if item.state is State.READY:
            agenda = lane.ready.get(item.crashes)
            if agenda is None:
                agenda = lane.ready[item.crashes] = Agenda()
            agenda.add(item.due_at, item.seq, item.id)
        elif item.lease_until is not None:
            lane.leased.add(item.lease_until, item.seq, item.id)
        elif item.letter is not None:
            place = (item.letter.died_at, item.seq)
            insort(self._died, place)
            if item.letter.disposition is Disposition.OPEN:
                insort(self._causes.setdefault((item.letter.failure.cause, item.queue), []), place)

    def _unlink(self, item: Item) -> None:
        lane = self.lanes[item.queue]
        lane.counts[bucket(item)] -= 1
        if item.state is State.READY:
            agenda = lane.ready[item.crashes]
            agenda.remove(item.id)
            if not agenda and item.crashes:
                del lane.ready[item.crashes]
        elif item.lease_until is not None:
            lane.leased.remove(item.id)
        elif item.letter is not None:
            place = (item.letter.died_at, item.seq)
            del self._died[bisect_left(self._died, place)]
            if item.letter.disposition is Disposition.OPEN:
                cause = (item.letter.failure.cause, item.queue)
                del self._causes[cause][bisect_left(self._causes[cause], place)]
                if not self._causes[cause]:
                    del self._causes[cause]

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

    def add_deed(self, item_id: str, deed: Deed) -> None:
        self._trail(item_id).deeds.append(deed)

    def has_deed(self, item_id: str, request_id: str) -> bool:
        trail = self._trails.get(item_id)
        return trail is not None and any(deed.request_id == request_id for deed in trail.deeds)

    def history(self, item: Item) -> History:
        trail = self._trails.get(item.id) or _Trail()
        return History(item, tuple(trail.attempts), trail.omitted, tuple(trail.deeds))

    # --- reading ---

    def oldest_first(self) -> Iterator[Item]:
        return (self.items[self._ids[seq]] for _, seq in self._enqueued)

    def latest_first(self, *, by_death: bool, before: Place | None) -> Iterator[tuple[Place, Item]]:
        places = self._died if by_death else self._enqueued
        end = len(places) if before is None else bisect_left(places, before)
        for index in range(end - 1, -1, -1):
            place = places[index]
            yield place, self.items[self._ids[place[1]]]

    def present(self, ids: Iterable[str]) -> list[Item]:
        """Those of the ids that exist, each once, in the order given."""
        return [self.items[item_id] for item_id in dict.fromkeys(ids) if item_id in self.items]

    def causes(self, queue: str | None) -> list[CauseTally]:
        rows = [self._cause(cause, where) for cause, where in self._causes if queue is None or where == queue]
        return sorted(rows, key=lambda row: (-row.count, row.cause, row.queue))

    def _cause(self, cause: str, queue: str) -> CauseTally:
        """The example is the letter that died first."""
        places = self._causes[cause, queue]
        (first_at, seq), (last_at, _) = places[0], places[-1]
        letter = self.items[self._ids[seq]].letter
        error, text = ("", "") if letter is None else (letter.failure.type, letter.failure.text)
        return CauseTally(cause, queue, len(places), error, text, first_at, last_at)

    # --- checking ---

    def findings(self) -> tuple[Finding, ...]:
        """Where what is derived disagrees with the items."""
        counted: dict[str, Counter[str]] = {}
        causes: Counter[tuple[str, str]] = Counter()
        found = Findings()
        for item in self.items.values():
            counted.setdefault(item.queue, Counter())[bucket(item)] += 1
            if (item.state is State.DEAD) != (item.letter is not None):
                found.add("letters", "items that are dead without a letter, or have one although they live", item.id)
            elif item.letter is not None and item.letter.disposition is Disposition.OPEN:
                causes[item.letter.failure.cause, item.queue] += 1
        found.add_counters({name: lane.counts for name, lane in self.lanes.items()}, counted)
        found.add_causes({key: len(places) for key, places in self._causes.items()}, causes)
        return found.told()
