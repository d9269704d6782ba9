"""What each verb makes of an item: pure functions from one value to the next."""

from __future__ import annotations

from typing import assert_never

from msgspec import structs

from redrive.core.decide import Charge, Decision, ToDead, ToDone, ToReady
from redrive.core.item import Instant, Item, Letter, Millis, NewItem
from redrive.core.states import Disposition, State
from redrive.core.verbs import Archive, Cancel, Change, Discard, Replay, Restore


def created(new: NewItem, seq: int, now: Instant) -> Item:
    return Item(
        id=new.id,
        queue=new.queue,
        payload=new.payload,
        seq=seq,
        state=State.READY,
        enqueued_at=now,
        due_at=now + new.delay,
        renewed_at=now,
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


def settled(item: Item, decision: Decision, now: Instant) -> Item:
    if not isinstance(decision, ToDone):
        item = _charged(item, decision.charge)
    match decision:
        case ToDone(result):
            return structs.replace(
                item, state=State.DONE, ended_at=now, result=result, lease_until=None, alone=False, letter=None
            )
        case ToReady(delay):
            return structs.replace(item, state=State.READY, due_at=now + delay, lease_until=None, alone=False)
        case ToDead(reason, _, failure):
            letter = Letter(reason, now, Disposition.OPEN, failure)
            return structs.replace(item, state=State.DEAD, ended_at=now, lease_until=None, alone=False, letter=letter)
        case _:
            assert_never(decision)


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


def amended(item: Item, change: Change, now: Instant) -> Item:
    """`verbs.refusal` has agreed before."""
    match change:
        case Replay():
            return _replayed(item, change, now)
        case Archive():
            return _laid(item, Disposition.ARCHIVED)
        case Discard():
            return _laid(item, Disposition.TRASH)
        case Restore():
            return _laid(item, Disposition.OPEN)
        case Cancel():
            return structs.replace(item, state=State.CANCELLED, ended_at=now)
        case _:
            assert_never(change)


def _replayed(item: Item, change: Replay, now: Instant) -> Item:
    """The same item with a new budget. `deliveries` goes on: it is the fence against whoever held it before."""
    return structs.replace(
        item,
        state=State.READY,
        due_at=now + change.delay,
        renewed_at=now,
        attempt=0,
        errors=0,
        crashes=0,
        replays=item.replays + 1,
        last_chance=change.budget == "once",
        ended_at=None,
        result=None,
        letter=None,
    )


def _laid(item: Item, disposition: Disposition) -> Item:
    letter = item.letter
    return item if letter is None else structs.replace(item, letter=structs.replace(letter, disposition=disposition))
