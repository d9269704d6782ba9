"""The move of a dead letter to a mailbox of another store.

In two steps, each of which may be repeated: the letter enters the other store under its own id, with its history, and
then ends here. A crash between them leaves it in both; the next attempt finds it there and ends it here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import structs

from redrive.core import outcome as o
from redrive.core.item import History, Item, Millis
from redrive.core.states import State
from redrive.core.verbs import Act
from redrive.engine.ids import new_id
from redrive.engine.letter_source import at_death
from redrive.engine.outbox import Undeliverable
from redrive.engine.report import settlement_of
from redrive.engine.signals import Snooze
from redrive.engine.store_retry import retry_unknown
from redrive.errors import NotFound
from redrive.mailboxes.boxes.envelope import opened
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.store import MailboxStore
from redrive.mailboxes.letters.dead_letter_view import dead_letter_from
from redrive.office.replay.resend import audit_entry

TTL: Millis = 60_000
FROM = "from:"


def origin_of(item: Item) -> str:
    """The fingerprint of the store that a letter came from; "" for one that died here."""
    return next((tag.removeprefix(FROM) for tag in item.tags if tag.startswith(FROM)), "")


def move(source: StoreMailbox[Any, Any], target: Mailbox[Any, Any], letter_id: str) -> bool:
    """Move a letter of `source`. False if it is not an open letter any more, or `target` is on the same store."""
    shared = source.shared
    letter = shared.call(_lease, shared, letter_id)
    if letter is None:
        return False
    outcome: o.Outcome = o.Release(f"not moved to {target.name}")
    try:
        if letter.item.flaw:
            raise Undeliverable(f"the letter is damaged: {letter.item.flaw}")
        if not isinstance(target, StoreMailbox):
            target.send(dead_letter_from(letter, opened(letter.item.payload), target.body_type or source.body_type))
            outcome = o.Cancelled(f"moved to {target.name} on another store")
        elif target.call(_take_in, target, letter, shared):
            outcome = o.Cancelled(f"moved to {target.name} on another store ({target._address()})")
    finally:
        shared.call(_end, shared, letter.item, outcome)
    return isinstance(outcome, o.Cancelled)


async def _lease(shared: MailboxStore, letter_id: str) -> History | None:
    # Under a worker name of its own: a letter that the same name holds would be given again.
    worker = f"{shared.worker}-{new_id()[:8]}"
    leased, _ = await retry_unknown(lambda: shared.store.lease_letters([letter_id], worker, TTL, early=True))
    try:
        history = await shared.store.get(letter_id)
    except NotFound:
        return None
    if not leased and history.item.state is State.DEAD and history.item.lease_until is not None:
        raise Snooze(timedelta(milliseconds=TTL), note="the letter is in use")
    return history if leased else None


async def _take_in(target: StoreMailbox[Any, Any], letter: History, home: MailboxStore) -> bool:
    """False if it is the very store that the letter is on, by another address: then it must not end there."""
    await target._prepare()
    shared = target.shared
    act = Act(home.worker, f"moved to {target.name} from another store", new_id())
    taken, _ = await retry_unknown(lambda: shared.store.take_in([_as_it_died(letter, home.fingerprint)], act))
    shared.notify(target.name)
    return not taken.already or (await shared.store.get(letter.item.id)).item.worker != letter.item.worker


def _as_it_died(history: History, fingerprint: str) -> History:
    """Without the delivery of the move itself, and its worker, by which a letter is known on its own store."""
    died, deliveries = at_death(history)
    tags = tuple(sorted({*died.item.tags, f"{FROM}{origin_of(died.item) or fingerprint}"}))
    return structs.replace(died, item=structs.replace(died.item, deliveries=deliveries, worker=None, tags=tags))


async def _end(shared: MailboxStore, item: Item, outcome: o.Outcome) -> None:
    made = settlement_of(item, outcome, worker=shared.worker)
    if isinstance(outcome, o.Cancelled):
        made = structs.replace(made, audit=audit_entry("move", Act(shared.worker, outcome.note, new_id()), item.id))
    await retry_unknown(lambda: shared.store.settle_letters([made]))
