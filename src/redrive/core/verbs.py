"""The words spoken to a store: arguments and results of its verbs, all frozen, all able to cross a wire."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from redrive.core.decide import Decision
from redrive.core.item import Attempt, Instant, Item, Millis, NewItem
from redrive.core.states import Disposition, State


class PutResult(Struct, frozen=True):
    added: tuple[str, ...] = ()
    already: tuple[str, ...] = ()


class Want(Struct, frozen=True):
    """How much of one queue a worker asks for. An item with `max_crashes - 1` crashes or more is given only alone."""

    queue: str
    limit: int
    ttl: Millis
    max_crashes: int


class LeaseRequest(Struct, frozen=True):
    """`holding` is how many leases the worker has in hand besides this request; `nonce` names the request."""

    worker: str
    wants: tuple[Want, ...]
    nonce: str
    holding: int = 0


class Leases(Struct, frozen=True):
    """`suspects_due`: an item waits that may only be leased by a worker which holds nothing else."""

    items: tuple[Item, ...] = ()
    suspects_due: bool = False


class Held(Struct, frozen=True, gc=False):
    id: str
    delivery: int


class Settlement(Struct, frozen=True, gc=False):
    """The end of one delivery. `attempt` is None only for a first-try success."""

    id: str
    delivery: int
    decision: Decision
    attempt: Attempt | None = None
    follow_ups: tuple[NewItem, ...] = ()


class Verdict(StrEnum):
    APPLIED = "applied"
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
    lost: tuple[str, ...] = ()


class Act(Struct, frozen=True):
    """Who does it, why, and under which request. An item is changed at most once per request id."""

    actor: str
    reason: str
    request_id: str


class Replay(Struct, frozen=True, tag=True):
    """All counters start anew. `fresh`: with the whole budget. `once`: the next error is final."""

    budget: Literal["fresh", "once"] = "fresh"
    delay: Millis = 0


class Archive(Struct, frozen=True, tag=True):
    pass


class Discard(Struct, frozen=True, tag=True):
    pass


class Restore(Struct, frozen=True, tag=True):
    pass


class Cancel(Struct, frozen=True, tag=True):
    pass


Change = Replay | Archive | Discard | Restore | Cancel


class Skipped(Struct, frozen=True):
    id: str
    reason: str


class Amended(Struct, frozen=True):
    """`already`: changed by an earlier call with the same request id."""

    changed: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def refusal(change: Change, state: State, disposition: Disposition | None) -> str | None:
    """Why `change` is not legal for an item in this state, or None. The one place that knows."""
    if isinstance(change, Cancel):
        return None if state is State.READY else f"it is {state}; only a ready item can be cancelled"
    if state is not State.DEAD or disposition is None:
        return f"it is {state}, not a dead letter"
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


class QueueTally(Struct, frozen=True):
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


class Tally(Struct, frozen=True):
    """Counts by queue, from kept counters. `oldest_due` is the earliest due time among the ready."""

    at: Instant
    queues: tuple[QueueTally, ...] = ()


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
    """`paused` None leaves it as it is; any change declares the queue."""

    paused: bool | None = None
    by: str = ""
    reason: str = ""


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
    """`stopped`: its last beat, in good order; without it, a worker that is not alive was lost."""

    queues: tuple[str, ...]
    host: str = ""
    pid: int = 0
    release: str = ""
    started_at: Instant = 0
    running: int = 0
    stopped: bool = False


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
