"""Letters of a mailbox that are kept long enough go to the trash: one by one, by their own age, and counted.

Never the whole mailbox because nobody looked at it. What is in the trash can be brought back for as long as its queue
says, 30 days unless it was set.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from redrive.core import durations
from redrive.core.item import Item, Millis
from redrive.core.select import Ids, Match
from redrive.core.verbs import Act, Discard
from redrive.engine.ids import new_id
from redrive.mailboxes.boxes.dead_letter import error_type
from redrive.mailboxes.boxes.place import surely
from redrive.mailboxes.letters.lending import open_letters
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.stores.base import Store

BITE = 100
ACTOR = "retention"


class _Place(Protocol):
    @property
    def store(self) -> Store: ...


async def expire(place: _Place, name: str, keep: Millis, *, metrics: MailboxMetrics | None = None) -> int:
    """Discard the open letters of this mailbox that died longer ago than `keep`, the longest dead first; how many.

    One that somebody works on is left for the next time.
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
    done, _ = await surely(lambda: store.amend(Ids(those), Discard(), act))
    return (*done.changed, *done.already)


def _labels(item: Item) -> tuple[str, str]:
    return item.queue, "" if item.letter is None else error_type(item.letter.failure)
