"""How many messages there are, and how to be rid of them: of the queue of this name, and of letters under it."""

from __future__ import annotations

from redrive.core.item import NewItem
from redrive.core.select import And, Match, Selection
from redrive.core.states import Disposition, State
from redrive.core.verbs import Act, Cancel, Change, Discard
from redrive.engine.ids import new_id
from redrive.engine.store_retry import retry_unknown
from redrive.errors import InvalidParameterError, NotFound
from redrive.mailboxes.boxes.store import MailboxStore
from redrive.stores.base import Store


async def count(shared: MailboxStore, name: str) -> int:
    tally = await shared.store.tally()
    live = sum(row.ready + row.held + row.parked + row.leased for row in tally.queues if row.queue == name)
    return live + sum(row.open for row in tally.routes if row.route == name)


async def purge(shared: MailboxStore, name: str) -> int:
    queue = Match("queue", "=", name)
    gone = await _all(shared, And((queue, Match("state", "=", State.READY))), Cancel())
    gone += await _all(shared, letters_of(name), Discard())
    # Asked once: they end when they are given back, or their time is over.
    await _all(shared, And((queue, Match("state", "=", State.LEASED))), Cancel(), once=True)
    return gone


def letters_of(name: str) -> Selection:
    """Open letters under this name."""
    dead, is_open = Match("state", "=", State.DEAD), Match("disposition", "=", Disposition.OPEN)
    return And((dead, is_open, Match("route", "=", name)))


async def _all(shared: MailboxStore, selection: Selection, change: Change, *, once: bool = False) -> int:
    """In bites, until nothing is left that can be changed."""
    changed = 0
    while True:
        act = Act(shared.worker, "purged", new_id())
        amended, _ = await retry_unknown(lambda act=act: shared.store.amend(selection, change, act))  # type: ignore[misc]
        changed += len(amended.changed) + len(amended.already)
        if once or not amended.changed:
            return changed


async def check_same_queue(store: Store, item: NewItem) -> None:
    """Ids are unique in the whole store: a repeat is harmless, but a message under a used id would be dropped."""
    try:
        there = (await store.get(item.id)).item
    except NotFound:
        return  # it was acknowledged, and is not kept any more
    if there.queue != item.queue:
        said = f"{item.id!r} is a message of {there.queue!r}, not of {item.queue!r}"
        raise InvalidParameterError(said, field="message_id", hint="ids are unique in the whole store: use another")
