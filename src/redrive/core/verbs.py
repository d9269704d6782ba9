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
from redrive.core.states import State


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

    `queue`: its name, or the pattern of a family (`webhook:*`), of whose members the items then are.

    `retries`: at most so many of them items that failed, crashed or were replayed before, unless the rest would be left
    unused; None for no such line. `share`: of the worker's leases, so many thousandths may be such items, with the same
    exception; None for any number. `turn`: how many leases of this queue the worker had before, from which `core.lanes`
    tells whose turn it is when items of several priorities wait, or retries beside first attempts. `kinds`: only
    items of these; None for all.
    """

    queue: str
    limit: int
    ttl: Millis
    max_crashes: int
    retries: int | None = None
    turn: int = 0
    share: int | None = None
    kinds: tuple[str, ...] | None = None


class LeaseRequest(Struct, frozen=True):
    """`holding` is how many leases the worker has in hand besides this request; `nonce` names the request.

    `lane`: a worker that has several requests under way makes each in a lane of its own. The last nonce of each lane
    is remembered, so that every one of them can be repeated.

    `item`: the id of the one item that is asked for. Then there is one want, of its queue, whose limit is ignored.
    """

    worker: str
    wants: tuple[Want, ...]
    nonce: str
    holding: int = 0
    lane: int = 0
    item: str = ""


class Leases(Struct, frozen=True):
    """`suspects_due`: an item waits that may only be leased by a worker which holds nothing else. `locked`: a queue of
    which items were given back at once, since this process does not have their encryption keys; "" if there was none.
    `more`: the lease looked at as many members of a family as it may and put some of them off, so that others follow:
    ask again at once, also if nothing was given.
    """

    items: tuple[Item, ...] = ()
    suspects_due: bool = False
    locked: str = ""
    more: bool = False


class Held(Struct, frozen=True, gc=False):
    id: str
    delivery: int


class Settlement(Struct, frozen=True, gc=False):
    """The end of one delivery. `attempt` is None only for a first-try success without output.

    `audit`, of a letter's alone: what the journal says of it, in the same write and only if it is applied. `queue`: the
    item's, by which a store knows that the result is to be encrypted; without it, the result is encrypted if the
    store has seen any encrypted queue.
    """

    id: str
    delivery: int
    decision: Decision
    attempt: Attempt | None = None
    follow_ups: tuple[NewItem, ...] = ()
    audit: NewEntry | None = None
    queue: str = ""


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


class LetterChange(Struct, frozen=True):
    """The last change of an item that is or was a letter: `item` as it is now, None if it was pruned."""

    number: int
    id: str
    item: Item | None = None


TRASH_KEPT: Millis = 30 * 24 * 3_600_000
RETRY_SHARE = 0.5
"""Of a new queue."""


class QueueSettings(Struct, frozen=True):
    """What `configure` keeps of a queue besides whether it is paused. None is no limit, "" is none.

    `max_running` and `max_per_key` bound what runs at once, `rate` how fast leases are given, `capacity` how much may
    wait or run, all over the whole fleet. `order`: what becomes of those behind a dead head of an order key. `gate`:
    the breaker it stands behind. `keep` and `keep_results`: how long finished items, and results alone, are kept.
    `retry_share`: of slots, rate and probes of its breaker, what retries and replays may take while first attempts
    wait; None for all. `keep_trash`: how long a discarded letter can be brought back before retention removes it.
    `encrypt`: new payloads and results are stored encrypted only.

    Of a family, `max_running` and `capacity` bound all members together, and the rest is the default of each member
    (core.families); `gate` may be `*`. `own`: of a member, which of SAYABLE it has for itself although a new queue has
    the same; any other value that a new queue has stands for the one of the family.
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
    retry_share: float | None = RETRY_SHARE
    keep_trash: Millis = TRASH_KEPT
    encrypt: bool = False
    own: tuple[str, ...] = ()


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

    `routes`: those that have open letters or a capacity, by name; letters without a route are under "". `families`: the
    declared families, with the sums of their members and their own settings; no `oldest_due`.
    """

    at: Instant
    queues: tuple[QueueTally, ...] = ()
    routes: tuple[RouteTally, ...] = ()
    families: tuple[QueueTally, ...] = ()

    def row(self, queue: str) -> QueueTally:
        """Of a queue or family; zeros for one that is not in it."""
        return next((row for row in (*self.queues, *self.families) if row.queue == queue), QueueTally(queue))


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
    leaves one as it is, None takes a limit away, or gives `order` and `keep_trash` as a new queue has them.
    """

    paused: bool | None = None
    by: str = ""
    reason: str = ""
    max_running: int | UnsetType | None = UNSET
    max_per_key: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    capacity: int | UnsetType | None = UNSET
    order: Literal["block", "park", "skip"] | UnsetType | None = UNSET
    policy: str | UnsetType = UNSET
    gate: str | UnsetType = UNSET
    keep: Millis | UnsetType | None = UNSET
    keep_results: Millis | UnsetType | None = UNSET
    retry_share: float | UnsetType | None = UNSET
    keep_trash: Millis | UnsetType | None = UNSET
    encrypt: bool | UnsetType = UNSET


SETTINGS = tuple([name for name in QueueSettings.__struct_fields__ if name != "own"])
"""The names of those that a change may speak of."""
SAYABLE = {"order": "block", "keep_trash": TRASH_KEPT}
"""Settings that a queue always has, as a new queue has them."""


def changed(settings: QueueSettings, change: QueueChange, *, member: bool) -> QueueSettings:
    """The settings as they are after the change. `member`: by its name, it may be one of a family."""
    values = {name: value for name in SETTINGS if (value := getattr(change, name)) is not UNSET}
    reset = {name for name in SAYABLE if name in values and values[name] is None}
    after = replace(settings, **values | {name: SAYABLE[name] for name in reset})
    said = ({*settings.own} | values.keys()) - reset
    own = [name for name, default in SAYABLE.items() if member and name in said and getattr(after, name) == default]
    return replace(after, own=tuple(own))


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


class KeyTally(Struct, frozen=True):
    """How many payloads and results are encrypted with a key; under "", those in clear of an encrypted queue."""

    key: str
    bodies: int


class Reencrypted(Struct, frozen=True):
    """`rewritten` bodies have the current key now; those of items that run (`running`) or that do not decrypt
    (`unreadable`) were left. `keys`: how many of those looked at have which key now. `next`: where to go on, None at
    the end.
    """

    rewritten: int = 0
    running: int = 0
    unreadable: int = 0
    keys: tuple[KeyTally, ...] = ()
    next: str | None = None


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
    may run at once. `order`: what an operator asked of it, once it has heard it. `kinds`: queue and kind with a
    blank between, of those queues of which it takes only these kinds. `missing_keys`: as in StoreInfo.
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
    kinds: tuple[str, ...] = ()
    missing_keys: tuple[str, ...] = ()

    def kinds_of(self, queue: str) -> tuple[str, ...] | None:
        """Those that the worker takes of a queue; None for all."""
        named = [name.partition(" ") for name in self.kinds]
        return tuple([kind for of, _, kind in named if of == queue]) or None

    def takes(self, queue: str, kind: str) -> bool:
        """Whether the worker has a handler for items of this kind."""
        kinds = self.kinds_of(queue)
        return queue in self.queues and (kinds is None or kind in kinds)

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
    """`durability`: what an accepted item survives: `power-loss`, `process-crash` or `none`. `keys`: the ids of the
    encryption keys that this process gave it, the current one first. `missing_keys`: queue and id of a key with a blank
    between, of keys that items have which were met in the last minutes, and which this process does not have; of each
    key one queue.
    """

    engine: str
    location: str
    durability: Literal["power-loss", "process-crash", "none"]
    library: str
    schema: int
    keys: tuple[str, ...] = ()
    missing_keys: tuple[str, ...] = ()


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
