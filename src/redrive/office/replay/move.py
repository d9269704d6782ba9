"""The move of a dead letter to another store.

In two steps, each of which may be repeated: the letter enters the other store under its own id, with its history, and
then ends here. A crash between them leaves it in both; the next attempt finds it there and ends it here.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec import structs

from redrive.core import outcome as o
from redrive.core.acts import Act
from redrive.core.item import History, Item, Millis
from redrive.core.states import State
from redrive.engine.ids import new_id
from redrive.engine.letter_source import at_death
from redrive.engine.report import settlement_of
from redrive.engine.signals import Snooze
from redrive.engine.store_retry import retry_unknown
from redrive.errors import NotFound
from redrive.office.replay.resend import audit_entry
from redrive.stores.base import Store

TTL: Millis = 60_000
FROM = "from:"


def origin_of(item: Item) -> str:
    """The fingerprint of the store that a letter came from; "" for one that died here."""
    return next((tag.removeprefix(FROM) for tag in item.tags if tag.startswith(FROM)), "")


async def lease(store: Store, worker: str, letter_id: str) -> History | None:
    """None if it is not an open letter any more. Raises Snooze if it is leased."""
    # Under a worker name of its own: a letter that the same name holds would be given again.
    name = f"{worker}-{new_id()[:8]}"
    leased, _ = await retry_unknown(lambda: store.lease_letters([letter_id], name, TTL, early=True))
    try:
        history = await store.get(letter_id)
    except NotFound:
        return None
    if not leased and history.item.state is State.DEAD and history.item.lease_until is not None:
        raise Snooze(timedelta(milliseconds=TTL), note="the letter is in use")
    return history if leased else None


async def take_in(target: Store, letter: History, origin: str, act: Act) -> bool:
    """False if it is the very store that the letter is on, by another address: then it must not end there."""
    taken, _ = await retry_unknown(lambda: target.take_in([_as_it_died(letter, origin)], act))
    return not taken.already or (await target.get(letter.item.id)).item.worker != letter.item.worker


async def end(store: Store, worker: str, item: Item, outcome: o.Outcome) -> None:
    """Settle the lease: cancelled if the letter was moved."""
    settlement = settlement_of(item, outcome, worker=worker)
    if isinstance(outcome, o.Cancelled):
        entry = audit_entry("move", Act(worker, outcome.note, new_id()), item.id)
        settlement = structs.replace(settlement, audit=entry)
    await retry_unknown(lambda: store.settle_letters([settlement]))


def _as_it_died(history: History, origin: str) -> History:
    """Without the delivery of the move itself, and its worker, by which a letter is known on its own store."""
    died, deliveries = at_death(history)
    tags = tuple(sorted({*died.item.tags, f"{FROM}{origin_of(died.item) or origin}"}))
    return structs.replace(died, item=structs.replace(died.item, deliveries=deliveries, worker=None, tags=tags))
