"""The words spoken to a store: arguments and results of its verbs, all frozen, all able to cross a wire."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from redrive.core.decide import Decision
from redrive.core.item import Attempt, Instant, Item, Millis, NewItem
from redrive.core.meters import Rate
from redrive.core.states import Disposition, State


class Duplicate(Struct, frozen=True):
    """The item `id` was not added: `of` holds its dedupe key."""

    id: str
    of: str


class PutResult(Struct, frozen=True):
    added: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()


class Want(Struct, frozen=True):
    """How much of one queue a worker asks for. An item with `max_crashes - 1` crashes or more is given only alone.

    `retries`: at most so many of them items that failed, crashed or were replayed before, unless the rest would be left
    unused; None for no such line. `turn`: how many leases of this queue the worker had before, from which `core.lanes`
    tells whose turn it is when items of several priorities wait.
    """

    queue: str
    limit: int
    ttl: Millis
    max_crashes: int
    retries: int | None = None
    turn: int = 0


class LeaseRequest(Struct, frozen=True):
    """`holding` is how many leases the worker has in hand besides this request; `nonce` names the request.

    `lane`: a worker that has several requests under way makes each in a lane of its own. The last nonce of each lane
    is remembered, so that every one of them can be repeated.
    """

    worker: str
    wants: tuple[Want, ...]
    nonce: str
    holding: int = 0
    lane: int = 0


class Leases(Struct, frozen=True):
    """`suspects_due`: an item waits that may only be leased by a worker which holds nothing else."""

    items: tuple[Item, ...] = ()
    suspects_due: bool = False


class Held(Struct, frozen=True, gc=False):
    id: str
    delivery: int


class Settlement(Struct, frozen=True, gc=False):
    """The end of one delivery. `attempt` is None only for a first-try success.

    `audit`, of a letter's alone: what the journal says of it, in the same write and only if it is applied.
    """

    id: str
    delivery: int
    decision: Decision
    attempt: Attempt | None = None
    follow_ups: tuple[NewItem, ...] = ()
    audit: NewEntry | None = None


class Verdict(StrEnum):
    """`kept`: applied, but its route was full, so that instead of dead it is ready again, later."""

    APPLIED = "applied"
    KEPT = "kept"
    ALREADY = "already"
    REFUSED = "refused"


class Answer(Struct, frozen=True, gc=False):
    id: str
    verdict: Verdict
    reason: str = ""


class Settled(Struct, frozen=True):
    answers: tuple[Answer, ...] = ()
    leases: Leases | None = None


class Extended(Struct, frozen=True):
    """`cancel_requested`: still held, and somebody asks the handler to stop."""

    lost: tuple[str, ...] = ()
    cancel_requested: tuple[str, ...] = ()


class Act(Struct, frozen=True):
    """Who does it, why, and under which request. An item is changed at most once per request id."""

    actor: str
    reason: str
    request_id: str


class Replay(Struct, frozen=True, tag=True):
    """All counters start anew. `fresh`: with the whole budget. `once`: the next error is final.

    `force`: even though a live twin holds its dedupe key, without which it then runs; and without waiting for any of
    `after`, which is the only way where one of them was cancelled. `queue`: to that one, as Move does, "" to its own.
    """

    budget: Literal["fresh", "once"] = "fresh"
    delay: Millis = 0
    force: bool = False
    queue: str = ""


class Archive(Struct, frozen=True, tag=True):
    pass


class Discard(Struct, frozen=True, tag=True):
    pass


class Restore(Struct, frozen=True, tag=True):
    pass


class Cancel(Struct, frozen=True, tag=True):
    """A ready item ends. A leased one is asked to: its worker hears of it with the next `extend`."""


class Skip(Struct, frozen=True, tag=True):
    """The letter stays, but what waits behind it under its order key goes on, marked with the gap."""


class Move(Struct, frozen=True, tag=True):
    """The letter belongs to another queue, declared if need be. One that others wait behind is to be skipped before."""

    queue: str


class Tag(Struct, frozen=True, tag=True):
    """Labels that stay with the item whatever becomes of it. What is there may be added, what is not there removed."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class Note(Struct, frozen=True, tag=True):
    """Nothing moves: the reason is the note, and the item's history has it."""


class SetPolicy(Struct, frozen=True, tag=True):
    """Replaces the policy of a waiting item, by name or as data (core.policy_data); "" removes it."""

    policy: str


class RunNow(Struct, frozen=True, tag=True):
    """A waiting item is due at once. `reset`: with the whole budget, as after a replay."""

    reset: bool = False


class Expire(Struct, frozen=True, tag=True):
    """A waiting item becomes a letter, tried or not, with the reason and failure of core.terms.EXPIRED_FAILURE."""


WaitingChange = SetPolicy | RunNow | Expire
"""Of ready items only."""
Change = Replay | Archive | Discard | Restore | Cancel | Skip | Move | Tag | Note | WaitingChange


class Skipped(Struct, frozen=True):
    id: str
    reason: str


class Amended(Struct, frozen=True):
    """`already`: changed by an earlier call with the same request id."""

    changed: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


_ONLY_WAITING: dict[type, str] = {
    SetPolicy: "only a waiting item's policy can be replaced",
    RunNow: "only a waiting item can be run now",
    Expire: "only a waiting item can expire",
}


def refusal(change: Change, state: State, disposition: Disposition | None, *, holder: str = "") -> str | None:
    """Why `change` is not legal for an item in this state, or None. The one place that knows.

    `holder`: who works on the letter where it lies, if anybody does (see core.item.holder).
    """
    if isinstance(change, Cancel):
        live = state in (State.READY, State.LEASED)
        return None if live else f"it is {state}; only a ready or running item can be cancelled"
    if isinstance(change, WaitingChange):
        return None if state is State.READY else f"it is {state}; {_ONLY_WAITING[type(change)]}"
    if isinstance(change, Tag | Note):
        return None
    if state is not State.DEAD or disposition is None:
        return f"it is {state}, not a dead letter"
    if holder:
        return f"it is leased by {holder}"
    if isinstance(change, Restore):
        return "it is open already" if disposition is Disposition.OPEN else None
    if disposition is Disposition.TRASH:
        return "it is in the trash; restore it first"
    if isinstance(change, Archive) and disposition is Disposition.ARCHIVED:
        return "it is archived already"
    return None


class Page(Struct, frozen=True):
    """One page of items. `next` continues after it, None at the end. `scanned` rows were looked at to fill it."""

    items: tuple[Item, ...] = ()
    next: str | None = None
    scanned: int = 0

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class IdPage(Struct, frozen=True):
    """Ids only, for acts on large sets. `next` continues after it, None at the end."""

    ids: tuple[str, ...] = ()
    next: str | None = None


TRASH_KEPT: Millis = 30 * 24 * 3_600_000


class QueueSettings(Struct, frozen=True):
    """What `configure` keeps of a queue besides whether it is paused. None is no limit, "" is none.

    `max_running` and `max_per_key` bound what runs at once, `rate` how fast leases are given, `capacity` how much may
    wait or run, all over the whole fleet. `order`: what becomes of those behind a dead head of an order key. `gate`:
    the breaker it stands behind. `keep` and `keep_results`: how long finished items, and results alone, are kept.
    `retry_share`: of its slots, how many a worker gives to retries and replays while first attempts wait. `keep_trash`:
    how long a discarded letter can be brought back before retention removes it.
    """

    max_running: int | None = None
    max_per_key: int | None = None
    rate: Rate | None = None
    capacity: int | None = None
    order: Literal["block", "park", "skip"] = "block"
    policy: str = ""
    gate: str = ""
    keep: Millis | None = None
    keep_results: Millis | None = None
    retry_share: float | None = None
    keep_trash: Millis = TRASH_KEPT


class QueueTally(Struct, frozen=True):
    """Each item is in one of the counts. `ready`: it could run, now or when it is due. `held`: it waits for others.
    `parked`: it waits behind a dead head, in a queue that parks, and is no backlog. `rate_at`: when its rate gives the
    next; None if it does now, or there is none.
    """

    queue: str
    ready: int = 0
    leased: int = 0
    done: int = 0
    open: int = 0
    archived: int = 0
    trash: int = 0
    cancelled: int = 0
    oldest_due: Instant | None = None
    paused: bool = False
    paused_by: str = ""
    paused_reason: str = ""
    held: int = 0
    parked: int = 0
    settings: QueueSettings = QueueSettings()
    rate_at: Instant | None = None

    @property
    def live(self) -> int:
        """Items that wait or run."""
        return self.ready + self.held + self.parked + self.leased


class RouteTally(Struct, frozen=True):
    """Open letters under one label, and how many it has room for."""

    route: str
    open: int = 0
    capacity: int | None = None


class Tally(Struct, frozen=True):
    """Counts by queue, from kept counters. `oldest_due` is the earliest due time among the ready.

    `routes`: those that have open letters or a capacity, by name; letters without a route are under "".
    """

    at: Instant
    queues: tuple[QueueTally, ...] = ()
    routes: tuple[RouteTally, ...] = ()

    def row(self, queue: str) -> QueueTally:
        """Zeros for a queue that is not in it."""
        return next((row for row in self.queues if row.queue == queue), QueueTally(queue))


class CauseTally(Struct, frozen=True):
    """Open letters that share a cause, with one example."""

    cause: str
    queue: str
    count: int
    error: str
    text: str
    first_at: Instant
    last_at: Instant


class QueueChange(Struct, frozen=True):
    """`paused` None leaves it as it is; any change declares the queue. The others are those of QueueSettings: UNSET
    leaves one as it is, None takes a limit away.
    """

    paused: bool | None = None
    by: str = ""
    reason: str = ""
    max_running: int | UnsetType | None = UNSET
    max_per_key: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    capacity: int | UnsetType | None = UNSET
    order: Literal["block", "park", "skip"] | UnsetType = UNSET
    policy: str | UnsetType = UNSET
    gate: str | UnsetType = UNSET
    keep: Millis | UnsetType | None = UNSET
    keep_results: Millis | UnsetType | None = UNSET
    retry_share: float | UnsetType | None = UNSET
    keep_trash: Millis | UnsetType = UNSET


_SETTINGS = tuple(name for name in QueueSettings.__struct_fields__)


def changed(settings: QueueSettings, change: QueueChange) -> QueueSettings:
    """The settings as they are after the change."""
    values = {name: getattr(change, name) for name in _SETTINGS}
    return replace(settings, **{name: value for name, value in values.items() if value is not UNSET})


class Gate(Struct, frozen=True):
    """A named dependency as `lease` sees it; what it means, and when it changes, is decided in core.gate.

    Times and intervals of meters are in microseconds. `interval` None: open to all. Else leases behind the gate are
    metered: `burst` at once, one more each `interval`. `share` (in thousandths of a retry per first attempt) None: no
    retry budget. Else retries are paid from `credit` (thousandths), which first attempts fill up to `cap`, or else from
    a meter that gives one each `floor`, so that nothing waits for ever. `body` is the business of whoever writes it.
    """

    name: str
    version: int
    interval: int | None = None
    burst: int = 1
    share: int | None = None
    cap: int = 0
    floor: int = 10_000_000
    next_at: int = 0
    credit: int = 0
    floor_at: int = 0
    body: bytes = b""


class GateWrite(Struct, frozen=True):
    """`expect`: the version that must be current, 0 if there must be none. `shut`: nothing for an interval."""

    name: str
    expect: int
    interval: int | None = None
    burst: int = 1
    share: int | None = None
    cap: int = 0
    floor: int = 10_000_000
    shut: bool = False
    body: bytes = b""


class Swept(Struct, frozen=True):
    """One bite of retention: so many were pruned; `next` goes on from there, None when all were looked at."""

    pruned: int = 0
    results: int = 0
    next: int | None = None


class Tombstone(Struct, frozen=True):
    """What remains of a pruned item."""

    id: str
    queue: str
    state: State
    payload_sha256: str
    at: Instant
    actor: str
    reason: str


class WorkerFacts(Struct, frozen=True):
    """`stopped`: its last beat, in good order; without it, a worker that is not alive was lost. `slots`: how much it
    may run at once. `order`: what an operator asked of it, once it has heard it.
    """

    queues: tuple[str, ...]
    host: str = ""
    pid: int = 0
    release: str = ""
    started_at: Instant = 0
    running: int = 0
    stopped: bool = False
    slots: int = 0
    order: str = ""

    def lasts(self, ttl: Millis) -> Millis:
        """How long the worker counts as alive after this beat. One that stopped is dead since a minute: the clock of
        another process may be a little behind. Every store asks here.
        """
        return -60_000 if self.stopped else ttl


class WorkerBeat(Struct, frozen=True):
    worker: str
    facts: WorkerFacts
    seen_at: Instant
    alive: bool


class Document(Struct, frozen=True):
    kind: str
    key: str
    version: int
    body: bytes


class DocumentWrite(Struct, frozen=True):
    """`body` None deletes. `expect`: the version that must be current (0: must not exist), None for any."""

    kind: str
    key: str
    body: bytes | None
    expect: int | None = None


class NewEntry(Struct, frozen=True):
    """A journal entry to append. `topic` is what readers filter by: audit, outbox, …"""

    topic: str
    body: bytes
    actor: str = ""
    reason: str = ""
    request_id: str = ""


class Entry(Struct, frozen=True):
    position: int
    at: Instant
    topic: str
    body: bytes
    actor: str = ""
    reason: str = ""
    request_id: str = ""


class StoreInfo(Struct, frozen=True):
    """`durability`: what an accepted item survives: `power-loss`, `process-crash` or `none`."""

    engine: str
    location: str
    durability: Literal["power-loss", "process-crash", "none"]
    library: str
    schema: int


class Finding(Struct, frozen=True):
    """Something in a store that is not as it should be, `count` times. `examples` are ids, where items have it."""

    kind: str
    text: str
    count: int = 1
    examples: tuple[str, ...] = ()


class Checkup(Struct, frozen=True):
    """What `check` found among so many items. `left_out`: what could not be looked at, and why."""

    items: int = 0
    findings: tuple[Finding, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        return not self.findings


class Backup(Struct, frozen=True):
    """A copy that was checked and is on the disk: where, how many bytes, and how long it took."""

    path: str
    size: int
    took: Millis
