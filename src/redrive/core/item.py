"""The item and the evidence it gathers: frozen values that know nothing of stores.

Instants are whole milliseconds since the epoch by the store's clock, durations are whole milliseconds: integers, so a
due time is exact on every store and a schedule cannot drift by rounding. `gc=False`: frozen values cannot form cycles,
and what the collector need not visit is cheaper.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from redrive.core.states import Disposition, State

Instant = int
Millis = int


class Priority(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Dedupe(Struct, frozen=True, gc=False):
    """One live item per key, in its queue or in the whole store; with `window` also for so long after it was put."""

    key: str
    scope: Literal["queue", "store"] = "queue"
    window: Millis | None = None


class Terms(Struct, frozen=True, gc=False, omit_defaults=True):
    """What binds an item to others, its own policy, and what describes it. Most items have none of it, and so no Terms.

    `order_key`: runs after everything of its queue that was put earlier under the same key. `limit_key`: counts against
    the queue's limit per key. `after`: runs when all of these are done; `on_dead` says what becomes of it when one of
    them is dead or cancelled: it waits for somebody to mend that, or dies too.

    `schema`: the version of the payload's schema. `trace`: a W3C traceparent. `headers`: text by name, each name once.
    `revision`: how often the payload was edited.
    """

    order_key: str = ""
    limit_key: str = ""
    dedupe: Dedupe | None = None
    after: tuple[str, ...] = ()
    on_dead: Literal["wait", "die"] = "wait"
    policy: str = ""
    schema: int = 0
    trace: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    revision: int = 0


class NewItem(Struct, frozen=True, gc=False):
    """What `put` takes. The caller makes the id, so a repeated put after an unknown outcome is "already there".

    `delay` counts from the put; with `at` it is due then, or at once if that has passed, by the store's clock. `kind`:
    which handler of the queue it is for; a lease names the kinds that it takes. `release`: of the program that put it.
    """

    id: str
    queue: str
    payload: bytes
    delay: Millis = 0
    at: Instant | None = None
    priority: Priority = Priority.NORMAL
    terms: Terms | None = None
    kind: str = ""
    release: str = ""


class Frame(Struct, frozen=True, gc=False):
    file: str
    line: int
    function: str


class Failure(Struct, frozen=True, gc=False):
    """Why an attempt failed: the error as text and names, never as an object to be rebuilt."""

    type: str
    text: str
    category: str
    rule: str
    cause: str
    action: str = "retry"
    code: str | None = None
    frames: tuple[Frame, ...] = ()


def error_line(type: str, text: str) -> str:
    """The type of an error, and its text if it has one."""
    return f"{type}: {text}" if text else type


class Ending(StrEnum):
    """How an attempt ended, as the history shows it."""

    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    CRASHED = "crashed"
    EXPIRED = "expired"
    SNOOZED = "snoozed"
    LIMITED = "limited"
    RELEASED = "released"
    CANCELLED = "cancelled"


class Attempt(Struct, frozen=True, gc=False, omit_defaults=True):
    """One delivery that ended: when, by whom, for how long and how. A first-try success without output writes none.

    `release`: of the program that ran it. `output`: what its handler kept with `keep_output`.
    """

    delivery: int
    number: int
    worker: str
    started_at: Instant
    ran: Millis
    ending: Ending
    failure: Failure | None = None
    note: str = ""
    release: str = ""
    output: bytes = b""


class Letter(Struct, frozen=True, gc=False):
    """What makes a dead item a letter: the reason it died and where it lies.

    `reserved`: the id of a replay that will send it; until then no other act changes it.
    """

    reason: str
    died_at: Instant
    disposition: Disposition
    failure: Failure
    route: str = ""
    reserved: str = ""


class Item(Struct, frozen=True, gc=False):
    """`deliveries` is the fence: +1 per lease, never back. `attempt` is given back by release and snooze.

    `errors` and `crashes` are what policies count; a replay sets them (and `attempt`) to 0 and `renewed_at` to its
    instant. `last_chance` says that the next error is final. `alone` says that the current lease was given as the only
    one of its worker. `leased_at` and `worker` stay after the end as the facts of the last attempt. `flaw` says what is
    wrong with a payload that was damaged or cannot be read: then `payload` is what is left of it, and never handled.

    `hold` says why a ready item cannot be leased however due it is: `after` (an item it waits for), `order` (the head
    of its key), `limit` (others of its limit key run), `parked:order` (the head of its key is dead and the queue
    parks), `parked:` and a label (an operator parked it, see verbs.Park). `gap` names a dead item of its order key that
    it was let past. `cancel` is who asked, and why, for a running item to be cancelled. `ended_at` of a letter in the
    trash is when it was discarded. `tags` are labels that people gave it, in alphabetical order. A letter that somebody
    works on where it lies has a `lease_until`, and `worker` is who has it; with an empty `worker` nobody gets it before
    then. `kind` and `release` are those of NewItem. `sealed` names the key that a payload is encrypted
    with which was not decrypted: then `payload` is its encrypted bytes, and `flaw` says why.
    """

    id: str
    queue: str
    payload: bytes
    seq: int
    state: State
    enqueued_at: Instant
    due_at: Instant
    renewed_at: Instant
    deliveries: int = 0
    attempt: int = 0
    errors: int = 0
    crashes: int = 0
    replays: int = 0
    last_chance: bool = False
    alone: bool = False
    worker: str | None = None
    leased_at: Instant | None = None
    lease_until: Instant | None = None
    ended_at: Instant | None = None
    result: bytes | None = None
    letter: Letter | None = None
    flaw: str = ""
    priority: Priority = Priority.NORMAL
    hold: str = ""
    gap: str = ""
    cancel: str = ""
    terms: Terms | None = None
    tags: tuple[str, ...] = ()
    kind: str = ""
    release: str = ""
    sealed: str = ""

    @property
    def schema(self) -> int:
        """The version of the payload's schema; 0 if none was given."""
        return 0 if self.terms is None else self.terms.schema

    @property
    def trace(self) -> str:
        """The W3C traceparent of the call that enqueued it, or ""."""
        return "" if self.terms is None else self.terms.trace

    @property
    def headers(self) -> dict[str, str]:
        """Text by name."""
        return {} if self.terms is None else dict(self.terms.headers)

    @property
    def revision(self) -> int:
        """How often the payload was edited."""
        return 0 if self.terms is None else self.terms.revision


class Deed(Struct, frozen=True):
    """An operator's act on an item, as its history shows it."""

    at: Instant
    change: str
    actor: str
    reason: str
    request_id: str


class Revision(Struct, frozen=True):
    """A payload as it was before an edit: number 0 is the one that was put. `at`, `actor` and `reason` are those of the
    edit that replaced it. `flaw` says what is wrong with one that was damaged; `payload` is then what is left of it.
    `sealed`: as of an item.
    """

    number: int
    payload: bytes
    at: Instant
    actor: str
    reason: str
    flaw: str = ""
    sealed: str = ""


class History(Struct, frozen=True):
    """An item with everything that happened to it. `omitted` attempts were dropped from the middle (see ATTEMPTS_*).

    `blocked_by` are the items it waits for: the head of its key, or those of `after` that are not done; at most
    BLOCKERS, longest enqueued first. `revisions` are all earlier payloads, the first one first.
    """

    item: Item
    attempts: tuple[Attempt, ...] = ()
    omitted: int = 0
    deeds: tuple[Deed, ...] = ()
    blocked_by: tuple[str, ...] = ()
    revisions: tuple[Revision, ...] = ()


def payloads_of(history: History) -> list[Item | Revision]:
    """What has a payload: the item, and those before its edits."""
    return [history.item, *history.revisions]


def holder(item: Item, now: Instant) -> str:
    """Who works on this letter where it lies; "" if nobody does, or the lease ran out."""
    leased = item.letter is not None and item.lease_until is not None and item.lease_until > now
    return (item.worker or "") if leased else ""


_MADE = re.compile(r"[a-z2-7]{24}(-r[0-9]+)?")


def short_id(item_id: str) -> str:
    """For people: eight characters of an id that we made are enough; one that users made is theirs to recognise."""
    return item_id[:8] if _MADE.fullmatch(item_id) else item_id


ATTEMPTS_FIRST = 20
ATTEMPTS_LAST = 180
OUTPUT_LIMIT = 64 * 1024
"""Bytes of an attempt's output. A longer one loses its middle."""
MOST_TRIES = 100_000_000
BLOCKERS = 100
