"""The overview of a store: its queues, routes, gates, causes of dead letters and workers, read at one time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from redrive.core.families import family_of, is_family, served
from redrive.core.item import Instant, Item, Millis, Terms, short_id
from redrive.core.redact import redact_text
from redrive.core.select import And, Match, Not, Or
from redrive.core.states import State
from redrive.core.terms import HOLDS
from redrive.core.verbs import CauseTally, QueueTally, RouteTally, StoreInfo, Tally, WorkerBeat, WorkerFacts
from redrive.engine.registry import is_outbox
from redrive.errors import NotFound
from redrive.office.doors import doors, start
from redrive.office.gates import GateView, list_gates
from redrive.stores.base import Store

TOP_CAUSES = 5
LOOKED_AT = 500
LINES = 20
"""Of a queue, so many order keys are examined: that some are stuck matters more than how many."""
BLOCKERS = 3


class Stuck(Struct, frozen=True):
    """`count` items wait for `letters`, which are dead: no worker will take them. `more`: not all were examined."""

    count: int
    letters: tuple[str, ...]
    more: bool

    def __str__(self) -> str:
        first = short_id(self.letters[0])
        whom = f"dead letter {first}" if len(self.letters) == 1 else f"{len(self.letters)} dead letters, as {first}"
        verb = "waits" if self.count == 1 and not self.more else "wait"
        return f"{self.count:,}{' or more' if self.more else ''} {verb} behind {whom}"


class QueueOverview(Struct, frozen=True):
    """A queue with what follows from its counts.

    `oldest`: how long the item that has been due longest waits. `workers`: live ones. `unattended`: there is work to
    do, or it is leased by a worker that is gone, and no worker is alive (a paused queue waits on purpose); then `start`
    is what would serve it. `stuck`: what waits for dead letters. `reached`: limits that keep it from taking or giving.
    `unserved`: kinds of which something is due and that no live worker has, though the queue has workers. Of a family,
    what is due is looked at among the items that were enqueued first.
    """

    tally: QueueTally
    oldest: Millis | None = None
    workers: int = 0
    unattended: bool = False
    start: str = ""
    stuck: Stuck | None = None
    reached: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.tally.queue

    @property
    def fill(self) -> int:
        """What counts against a capacity."""
        return self.tally.live


class Overview(Struct, frozen=True):
    """`causes` are the most frequent ones. `gates` are read only if a queue stands behind one."""

    at: Instant
    info: StoreInfo
    queues: tuple[QueueOverview, ...] = ()
    routes: tuple[RouteTally, ...] = ()
    gates: tuple[GateView, ...] = ()
    causes: tuple[CauseTally, ...] = ()
    workers: tuple[WorkerBeat, ...] = ()

    @property
    def full_routes(self) -> tuple[RouteTally, ...]:
        return tuple(row for row in self.routes if row.capacity is not None and row.open >= row.capacity)

    @property
    def open_gates(self) -> tuple[GateView, ...]:
        return tuple(gate for gate in self.gates if gate.state != "closed")


async def overview(store: Store, *, members: bool = False) -> Overview:
    """`members`: with a row for each member of a family, not one for the family."""
    tally = await store.tally(members=members)
    gates = await list_gates(store) if any(row.settings.gate for row in tally.queues) else ()
    causes = tuple([replace(each, text=redact_text(each.text)) for each in await store.causes(None, TOP_CAUSES)])
    workers = await store.workers()
    alive = [beat.facts for beat in workers if beat.alive]
    stuck = await _stuck(store, tally.queues)
    queues = [
        _queue(row, tally.at, sum(_serves(facts, row.queue) for facts in alive), stuck.get(row.queue), gates)
        for row in tally.queues
    ]
    queues = [row for row in queues if not is_outbox(row.name) or row.fill or row.tally.open]
    queues = [
        await _with_waiting(store, row, alive, tally.at)
        if is_family(row.name) and row.tally.ready and not row.tally.paused
        else replace(row, unserved=await _unserved(store, row, alive))
        if row.oldest is not None
        else row
        for row in queues
    ]
    if any(row.unattended for row in queues):
        marked = await doors(store)
        queues = [
            replace(row, start=start(marked.get(row.name, ""), row.name)) if row.unattended else row for row in queues
        ]
    return Overview(tally.at, store.info(), tuple(queues), tally.routes, gates, causes, workers)


def _queue(
    row: QueueTally, now: Instant, workers: int, stuck: Stuck | None, gates: tuple[GateView, ...]
) -> QueueOverview:
    waits = bool(row.ready) and row.oldest_due is not None and row.oldest_due <= now
    oldest = now - row.oldest_due if waits and row.oldest_due is not None else None
    # An outbox item is retried by the process that serves its target: without one it is never due again.
    to_do = row.leased > 0 or ((oldest is not None or (is_outbox(row.queue) and row.ready > 0)) and not row.paused)
    made = QueueOverview(row, oldest, workers, to_do and not workers, "", stuck)
    settings, reached = row.settings, []
    if settings.capacity is not None and made.fill >= settings.capacity:
        reached.append("FULL")
    if settings.max_running is not None and row.leased >= settings.max_running:
        reached.append("AT MAX RUNNING")
    if settings.gate and any(gate.name == settings.gate and gate.state != "closed" for gate in gates):
        reached.append(f"GATE {settings.gate} OPEN")
    return replace(made, reached=tuple(reached))


def _serves(facts: WorkerFacts, queue: str) -> bool:
    """A family is also served by a worker that has only some of its members."""
    return bool(served(facts.queues, queue)) or (is_family(queue) and queue in map(family_of, facts.queues))


async def _unserved(store: Store, row: QueueOverview, alive: Sequence[WorkerFacts]) -> tuple[str, ...]:
    """Costs nothing where a worker has all kinds, or there is none at all."""
    serving = [(facts, name) for facts in alive if (name := served(facts.queues, row.name))]
    if not serving or any(facts.kinds_of(name) is None for facts, name in serving):
        return ()
    due = await store.kinds(row.name)
    return tuple([kind for kind in due if not any(facts.takes(name, kind) for facts, name in serving)])


async def _with_waiting(store: Store, row: QueueOverview, alive: Sequence[WorkerFacts], now: Instant) -> QueueOverview:
    """Of a family, from the items that have waited longest: its members are too many to look at all of them."""
    held = Or(tuple([Match("hold", "=", hold) for hold in HOLDS[1:]]))
    waiting = And((Match("queue", "glob", row.name), Match("state", "=", State.READY), Not(held)))
    page = await store.find(waiting, LOOKED_AT, oldest=True)
    due = [item for item in page.items if item.due_at <= now and family_of(item.queue) == row.name]
    asked = await store.tally(members={item.queue for item in due}) if due else Tally(now)
    paused = {each.queue for each in asked.queues if each.paused}
    due = [item for item in due if item.queue not in paused]
    if not due:
        return row
    unserved: set[str] = set()
    left = False
    for queue, kind in {(item.queue, item.kind) for item in due}:
        serving = [(facts, name) for facts in alive if (name := served(facts.queues, queue))]
        left = left or not serving
        if serving and not any(facts.takes(name, kind) for facts, name in serving):
            unserved.add(kind)
    oldest = now - min(item.due_at for item in due)
    return replace(row, oldest=oldest, unserved=tuple(sorted(unserved)), unattended=row.unattended or left)


# --- what waits for dead letters ---


async def _stuck(store: Store, queues: tuple[QueueTally, ...]) -> dict[str, Stuck]:
    """By queue. Costs nothing where no item is held, or none is dead. Parked items are counted by the store."""
    if not any(row.open + row.archived + row.trash for row in queues):
        return {}
    found = {row.queue: await _stuck_in(store, row.queue) for row in queues if row.held}
    return {queue: each for queue, each in found.items() if each is not None}


async def _stuck_in(store: Store, queue: str) -> Stuck | None:
    waits = Or((Match("hold", "=", "order"), Match("hold", "=", "after")))
    page = await store.find(And((Match("queue", "=", queue), Match("state", "=", State.READY), waits)), LOOKED_AT)
    lines: dict[str, list[Item]] = {}
    for item in page.items:
        if "parked" not in item.hold:
            lines.setdefault(_line(item), []).append(item)
    count, letters = 0, dict[str, None]()
    for line in list(lines.values())[:LINES]:
        letter = await _letter_before(store, line[0].id)
        if letter is not None:
            count += len(line)
            letters[letter] = None
    more = page.next is not None or len(lines) > LINES
    return Stuck(count, tuple(letters), more) if letters else None


def _line(item: Item) -> str:
    """Items behind one head wait for the same one; an item that waits for others of its own is a line of its own."""
    key = (item.terms or Terms()).order_key
    return f"key {key}" if item.hold == "order" else f"item {item.id}"


async def _letter_before(store: Store, item_id: str) -> str | None:
    """The first dead one of those it waits for; items that end meanwhile are passed over."""
    with suppress(NotFound):
        for blocker in (await store.get(item_id)).blocked_by[:BLOCKERS]:
            if (await store.get(blocker)).item.state is State.DEAD:
                return blocker
    return None
