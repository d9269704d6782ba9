"""Acts on items: the changes that `amend` makes, and for which items each of them is legal."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

from redrive.core.item import Millis
from redrive.core.states import Disposition, State


class Act(Struct, frozen=True):
    """Who does it, why, and under which request. Each kind of change is made to an item at most once per request id."""

    actor: str
    reason: str
    request_id: str


class Replay(Struct, frozen=True, tag=True):
    """All counters start anew. `fresh`: with the whole budget. `once`: the next error is final.

    `force`: even though a live twin holds its dedupe key, without which it then runs; and without waiting for any of
    `after`, which is the only way where one of them was cancelled. `queue`: to that one, as Move does, "" to its own.
    `reserved`: only letters that are reserved for this replay, and no others.
    """

    budget: Literal["fresh", "once"] = "fresh"
    delay: Millis = 0
    force: bool = False
    queue: str = ""
    reserved: str = ""


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


class Park(Struct, frozen=True, tag=True):
    """A waiting item is not leased, however due it is, until Unpark, Cancel or Expire. `label` is a short name for why,
    such as `schema`; parking it again replaces the label.
    """

    label: str


class Unpark(Struct, frozen=True, tag=True):
    """A parked item waits again for what it would wait for now: other items, its order key, or its due time alone."""


class Edit(Struct, frozen=True, tag=True):
    """The payload of a letter or a waiting item becomes a new revision; the earlier ones are kept (item.Revision).

    `revision`: the number that must be the current one, None for any.
    """

    payload: bytes
    revision: int | None = None


class Recall(Struct, frozen=True, tag=True):
    """A replayed item that no worker has leased since becomes the letter that it was before the replay."""


class Reserve(Struct, frozen=True, tag=True):
    """The letter stays as it is, kept for the replay with this id: every other act on it is refused."""

    replay: str


class Unreserve(Struct, frozen=True, tag=True):
    """The letter is not kept for a replay any more. If that is about to send it, its lease is taken away."""


WaitingChange = SetPolicy | RunNow | Expire | Park | Unpark
"""Of ready items only."""
Change = (
    Replay
    | Archive
    | Discard
    | Restore
    | Cancel
    | Skip
    | Move
    | Tag
    | Note
    | WaitingChange
    | Recall
    | Reserve
    | Unreserve
    | Edit
)


SkipCode = Literal[
    # By what it is: its state, or the disposition of the letter.
    "missing", "damaged", "encrypted", "ready", "leased", "done", "cancelled", "dead", "open", "archived", "trash",
    # By what is kept beside it.
    "parked", "not_parked", "reserved", "not_reserved", "revision", "edits", "tags", "put_off",
    "not_replayed", "leased_since", "ended_since",
    # By what it is bound to.
    "not_head", "head", "bound", "dedupe_key", "dependency", "same_queue", "other_queue", "moved",
    # Of replays by payload.
    "duplicate", "no_key", "begun", "error",
]  # fmt: skip


class Refusal(NamedTuple):
    """Why an item is skipped, in words, and for programs: `code` stays the same whatever the words become."""

    reason: str
    code: SkipCode


def of_other_queue(queue: str, noun: str) -> Refusal:
    return Refusal(f"it is an item of queue {queue}, not a {noun}", "other_queue")


class Skipped(Struct, frozen=True):
    """`code` is the reason for programs (docs/letters.md lists them)."""

    id: str
    reason: str
    code: SkipCode


class Amended(Struct, frozen=True):
    """`already`: changed so by an earlier call with the same request id."""

    changed: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


_ONLY_WAITING: dict[type, str] = {
    SetPolicy: "only a waiting item's policy can be replaced",
    RunNow: "only a waiting item can be run now",
    Expire: "only a waiting item can expire",
    Park: "only a waiting item can be parked",
}
MISSING = Refusal("no such item", "missing")
IS_PARKED = Refusal("it is parked; unpark it first", "parked")
NOT_PARKED = Refusal("it is not parked", "not_parked")
NOT_HEAD = Refusal("it keeps nothing back: it is not the head of an order key", "not_head")
EDITS_LIMIT = 100
"""So many revisions an item may have besides the first."""


def _is(state: State, words: str) -> Refusal:
    return Refusal(f"it is {'running' if state is State.LEASED else state}{words}", state.value)


def _not_waiting(change: WaitingChange, state: State) -> Refusal:
    return NOT_PARKED if isinstance(change, Unpark) else _is(state, f"; {_ONLY_WAITING[type(change)]}")


def _not_a_letter(change: Change, state: State) -> Refusal:
    if not isinstance(change, Edit):
        return _is(state, ", not a dead letter")
    later = state is State.LEASED
    words = "edit it when it waits again, or is a letter" if later else "only a letter or a waiting item can be edited"
    return _is(state, f"; {words}")


def parked_refusal(change: Change, *, parked: bool) -> Refusal | None:
    """Why a waiting item is not run now, or not unparked, where its state allows it."""
    if isinstance(change, RunNow):
        return IS_PARKED if parked else None
    return NOT_PARKED if isinstance(change, Unpark) and not parked else None


def edit_refusal(change: Edit, revision: int) -> Refusal | None:
    """Why a payload at this revision cannot be edited, where the item's state allows it."""
    if change.revision is not None and change.revision != revision:
        return Refusal(f"it is at revision {revision}, not {change.revision}", "revision")
    full = f"it was edited {revision} times; {EDITS_LIMIT} are the most"
    return Refusal(full, "edits") if revision >= EDITS_LIMIT else None


NOT_REPLAYED = Refusal("it was not replayed", "not_replayed")
NOT_REPLAYED_LETTER = Refusal("it is a dead letter: it was not replayed, or it was recalled already", "not_replayed")
LEASED_SINCE = Refusal("a worker has leased it since its replay", "leased_since")
ENDED_SINCE = Refusal("it has ended since its replay", "ended_since")


def recall_refusal(state: State, deliveries: int, kept: int | None) -> Refusal | None:
    """Why an item is not recalled, or None. `kept`: its deliveries when it was replayed; None if no letter is kept."""
    if kept is None:
        return NOT_REPLAYED_LETTER if state is State.DEAD else NOT_REPLAYED
    if kept != deliveries:
        return LEASED_SINCE
    return None if state is State.READY else ENDED_SINCE


def reserved_for(replay: str) -> Refusal:
    return Refusal(f"it is reserved for replay {replay}; cancel that replay first", "reserved")


def not_reserved(replay: str) -> Refusal:
    return Refusal(f"it is not reserved for replay {replay}" if replay else "it is not reserved", "not_reserved")


def unreadable(flaw: str, key: str) -> Refusal:
    """`key`: the one that the payload is encrypted with; "" if it is not encrypted."""
    if key:
        return Refusal(f"its payload cannot be read: {flaw}", "encrypted")
    return Refusal(f"it is damaged: {flaw}", "damaged")


def key_held(holder: str) -> Refusal:
    return Refusal(f"its dedupe key is held by {holder}", "dedupe_key")


def _reserved_refusal(change: Change, reserved: str) -> Refusal | None:
    named = change.reserved if isinstance(change, Replay) else ""
    if reserved and reserved != named and not isinstance(change, Unreserve):
        return reserved_for(reserved)
    return not_reserved(named) if not reserved and (named or isinstance(change, Unreserve)) else None


def refusal(
    change: Change, state: State, disposition: Disposition | None, *, holder: str = "", reserved: str = ""
) -> Refusal | None:
    """Why `change` is not legal for an item in this state, or None. The one place that knows.

    `holder`: who works on the letter where it lies, if anybody does (see core.item.holder). A recall depends on the
    letter that was kept: `recall_refusal` judges it. `reserved`: the replay for which the letter is kept.
    """
    if isinstance(change, Cancel):
        live = state in (State.READY, State.LEASED)
        return None if live else _is(state, "; only a ready or running item can be cancelled")
    if isinstance(change, WaitingChange):
        return None if state is State.READY else _not_waiting(change, state)
    if isinstance(change, Tag | Note | Recall) or (isinstance(change, Edit) and state is State.READY):
        return None
    if state is not State.DEAD or disposition is None:
        return _not_a_letter(change, state)
    return _letter_refusal(change, disposition, holder, reserved)


def _letter_refusal(change: Change, disposition: Disposition, holder: str, reserved: str) -> Refusal | None:
    if holder and not isinstance(change, Unreserve):
        return Refusal(f"it is leased by {holder}", "leased")
    kept = _reserved_refusal(change, reserved)
    if kept is not None:
        return kept
    if isinstance(change, Restore):
        return Refusal("it is open already", "open") if disposition is Disposition.OPEN else None
    if disposition is Disposition.TRASH:
        return Refusal("it is in the trash; restore it first", "trash")
    if isinstance(change, Archive) and disposition is Disposition.ARCHIVED:
        return Refusal("it is archived already", "archived")
    return None
