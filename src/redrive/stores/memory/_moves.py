"""What each verb makes of an item: pure functions from one value to the next."""

from __future__ import annotations

from typing import Any, assert_never

from msgspec import structs

from redrive.core import terms
from redrive.core.acts import (
    Act,
    Archive,
    Cancel,
    Change,
    Discard,
    Edit,
    Expire,
    Move,
    Note,
    Park,
    Recall,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skip,
    Tag,
    Unpark,
    Unreserve,
    WaitingChange,
)
from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone, ToReady
from redrive.core.item import Instant, Item, Letter, Millis, NewItem, Terms, holder
from redrive.core.states import Disposition, State
from redrive.stores.checks import tagged


def created(new: NewItem, seq: int, now: Instant) -> Item:
    return Item(
        id=new.id,
        queue=new.queue,
        payload=new.payload,
        seq=seq,
        state=State.READY,
        enqueued_at=now,
        due_at=terms.due(new, now),
        renewed_at=now,
        priority=new.priority,
        terms=None if new.terms == Terms() else new.terms,
        kind=new.kind,
        release=new.release,
    )


def leased(item: Item, worker: str, ttl: Millis, now: Instant, *, alone: bool) -> Item:
    """Counted before it is given: a crash between here and the handler is already in the books."""
    return structs.replace(
        item,
        state=State.LEASED,
        deliveries=item.deliveries + 1,
        attempt=item.attempt + 1,
        worker=worker,
        leased_at=now,
        lease_until=now + ttl,
        alone=alone,
    )


def extended(item: Item, until: Instant) -> Item:
    return structs.replace(item, lease_until=until)


def reclaimed(item: Item, ttl: Millis, now: Instant) -> Item:
    """Only the fence moves. Everything else still tells of the delivery that was lost, for `decide` to judge."""
    return structs.replace(item, deliveries=item.deliveries + 1, lease_until=now + ttl)


def letter_leased(item: Item, worker: str, ttl: Millis, now: Instant) -> Item:
    """Only the fence is counted: the letter stays what it is. Whoever holds it still keeps its delivery."""
    if holder(item, now) == worker:
        return structs.replace(item, lease_until=max(item.lease_until or 0, now + ttl))
    return structs.replace(item, deliveries=item.deliveries + 1, worker=worker, leased_at=now, lease_until=now + ttl)


def letter_settled(item: Item, decision: Decision, now: Instant) -> Item:
    match decision:
        case ToDone(result):
            return _ended(item, State.DONE, now, result=result, letter=None)
        case ToCancelled():
            return _ended(item, State.CANCELLED, now, letter=None)
        case ToReady(delay) if delay > 0:
            return structs.replace(item, worker="", lease_until=now + delay)
        case ToReady() | ToDead():
            return structs.replace(item, lease_until=None)
        case _:
            assert_never(decision)


def settled(item: Item, decision: Decision, now: Instant, *, room: bool = True) -> Item:
    """`room`: whether the route of a letter takes one more; if not, the item stays live."""
    if not isinstance(decision, ToDone | ToCancelled):
        item = _charged(item, decision.charge)
    match decision:
        case ToDone(result):
            return _ended(item, State.DONE, now, result=result, letter=None, cancel="")
        case ToReady(delay):
            return _ready_again(item, delay, now)
        case ToDead(reason, _, failure, route, otherwise):
            if not room:
                return _ready_again(item, otherwise, now)
            return _ended(
                item, State.DEAD, now, letter=Letter(reason, now, Disposition.OPEN, failure, route), cancel=""
            )
        case ToCancelled():
            return _ended(item, State.CANCELLED, now)
        case _:
            assert_never(decision)


def _ended(item: Item, state: State, now: Instant, **changes: Any) -> Item:
    return structs.replace(item, state=state, ended_at=now, lease_until=None, alone=False, **changes)


def _ready_again(item: Item, delay: Millis, now: Instant) -> Item:
    """Unless somebody asked for its end."""
    if item.cancel:
        return _ended(item, State.CANCELLED, now)
    return structs.replace(item, state=State.READY, due_at=now + delay, lease_until=None, alone=False)


def _charged(item: Item, charge: Charge) -> Item:
    match charge:
        case Charge.ERROR:
            return structs.replace(item, errors=item.errors + 1)
        case Charge.CRASH:
            return structs.replace(item, crashes=item.crashes + 1)
        case Charge.NOTHING:
            return structs.replace(item, attempt=item.attempt - 1)
        case _:
            assert_never(charge)


def doomed(item: Item, now: Instant) -> Item:
    """One that it waits for will not come, and it was to die then."""
    return _dead_while_ready(item, Letter(terms.DEPENDENCY, now, Disposition.OPEN, terms.DEPENDENCY_FAILURE))


def _dead_while_ready(item: Item, letter: Letter) -> Item:
    return structs.replace(item, state=State.DEAD, hold="", ended_at=letter.died_at, letter=letter)


def amended(item: Item, change: Change, by: Act, now: Instant) -> Item:
    """`acts.refusal` has agreed before."""
    item = _taken_away(item, change)
    match change:
        case Replay():
            return _replayed(item, change, now)
        case Archive():
            return _laid(item, Disposition.ARCHIVED)
        case Discard():
            return structs.replace(_laid(item, Disposition.TRASH), ended_at=now)
        case Restore():
            return _laid(item, Disposition.OPEN)
        case Cancel():
            return _cancelled(item, by, now)
        case Move(queue):
            return structs.replace(item, queue=queue)
        case SetPolicy() | RunNow() | Expire() | Park() | Unpark():
            return _waiting_changed(item, change, now)
        case Tag() | Edit() | Reserve() | Unreserve():
            return _rewritten(item, change)
        case Skip() | Note() | Recall():
            return item
        case _:
            assert_never(change)


def _rewritten(item: Item, change: Tag | Edit | Reserve | Unreserve) -> Item:
    match change:
        case Tag():
            return structs.replace(item, tags=tagged(item.tags, change))
        case Edit(payload):
            return structs.replace(item, payload=payload, terms=terms.edited(item.terms))
        case Reserve(replay):
            return _reserved(item, replay)
        case Unreserve():
            return _reserved(item, "")


def _waiting_changed(item: Item, change: WaitingChange, now: Instant) -> Item:
    match change:
        case SetPolicy(policy):
            return structs.replace(item, terms=terms.with_policy(item.terms, policy))
        case RunNow(reset):
            return structs.replace(item, due_at=now, **(_anew(now) | {"last_chance": False} if reset else {}))
        case Expire():
            return _dead_while_ready(item, Letter(terms.EXPIRED, now, Disposition.OPEN, terms.EXPIRED_FAILURE))
        case Park(label):
            return structs.replace(item, hold=terms.parked_hold(label))
        case Unpark():
            # What it waits for besides is for those to say who know the others.
            return structs.replace(item, hold="")
        case _:
            assert_never(change)


def _anew(now: Instant) -> dict[str, Any]:
    """Counters as of an item that was never tried."""
    return {"renewed_at": now, "attempt": 0, "errors": 0, "crashes": 0}


def _cancelled(item: Item, by: Act, now: Instant) -> Item:
    """A ready item ends; one that runs is asked to."""
    if item.state is State.LEASED:
        return structs.replace(item, cancel=f"{by.actor}: {by.reason}")
    return structs.replace(item, state=State.CANCELLED, hold="", ended_at=now)


def _taken_away(item: Item, change: Change) -> Item:
    """From whoever let the lease of a letter run out: what others have in hand now is not his to end."""
    if item.letter is None or item.lease_until is None or isinstance(change, Tag | Note):
        return item
    return structs.replace(item, deliveries=item.deliveries + 1, lease_until=None)


def _replayed(item: Item, change: Replay, now: Instant) -> Item:
    """The same item with a new budget. `deliveries` goes on: it is the fence against whoever held it before."""
    return structs.replace(
        item,
        queue=change.queue or item.queue,
        state=State.READY,
        due_at=now + change.delay,
        **_anew(now),
        replays=item.replays + 1,
        last_chance=change.budget == "once",
        ended_at=None,
        result=None,
        letter=None,
    )


def recalled(item: Item, letter: Item) -> Item:
    """The replayed item as the letter that it was, still in the queue in which it waits."""
    return structs.replace(
        item,
        state=State.DEAD,
        hold="",
        due_at=letter.due_at,
        renewed_at=letter.renewed_at,
        attempt=letter.attempt,
        errors=letter.errors,
        crashes=letter.crashes,
        last_chance=letter.last_chance,
        ended_at=letter.ended_at,
        gap=letter.gap,
        letter=None if letter.letter is None else structs.replace(letter.letter, reserved=""),
        replays=item.replays - 1,
    )


def _reserved(item: Item, replay: str) -> Item:
    return item if item.letter is None else structs.replace(item, letter=structs.replace(item.letter, reserved=replay))


def _laid(item: Item, disposition: Disposition) -> Item:
    letter = item.letter
    if letter is None:
        return item
    return structs.replace(item, ended_at=letter.died_at, letter=structs.replace(letter, disposition=disposition))
