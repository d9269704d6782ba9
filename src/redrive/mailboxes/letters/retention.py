"""Retention of dead-letter mailboxes: letters older than the mailbox's time to live go to the trash, each by its age.

They can be restored from the trash for the time that their queue sets, 30 days by default.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from redrive.core import durations
from redrive.core.item import Item, Millis
from redrive.core.select import Ids, Match
from redrive.core.verbs import Act, Discard
from redrive.engine.ids import new_id
from redrive.engine.letter_source import open_letters
from redrive.engine.store_retry import retry_unknown
from redrive.mailboxes.boxes.dead_letter import error_type
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.stores.base import Store

BITE = 100
ACTOR = "retention"


class _Place(Protocol):
    @property
    def store(self) -> Store: ...


async def expire(place: _Place, name: str, keep: Millis, *, metrics: MailboxMetrics | None = None) -> int:
    """Discard the open letters of this mailbox that died longer ago than `keep`, longest dead first; how many.

    Leased letters are left for the next call.
    """
    act = Act(ACTOR, f"kept in {name} for {durations.format(keep)}", new_id())
    counted = default_metrics() if metrics is None else metrics
    expired, cursor = 0, None
    too_old = open_letters(name, Match("died", ">", keep))
    while True:
        page = await place.store.find(too_old, BITE, cursor, oldest=True)
        if page.items:
            old = {item.id: item for item in page.items}
            gone = await _discarded(place.store, tuple(old), act)
            expired += len(gone)
            for labels, count in Counter(_labels(old[each]) for each in gone).items():
                counted.expired(*labels, count)
        if page.next is None:
            return expired
        cursor = page.next


async def _discarded(store: Store, those: tuple[str, ...], act: Act) -> tuple[str, ...]:
    done, _ = await retry_unknown(lambda: store.amend(Ids(those), Discard(), act))
    return (*done.changed, *done.already)


def _labels(item: Item) -> tuple[str, str]:
    return item.queue, "" if item.letter is None else error_type(item.letter.failure)
