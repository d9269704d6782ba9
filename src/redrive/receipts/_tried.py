"""What dead receipts failed with since they died: of each that somebody tried where it lies, the last try.

A letter keeps what it died of, by which it is found and grouped. What was said to it later is in its history alone, and
that is read only for those that somebody has had in hand since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from redrive.app import Redrive
from redrive.core.item import Attempt, Ending, History, Item
from redrive.errors import NotFound
from redrive.stores.base import Store

BITE = 50
IN_PLACE = "in place by "
"""How the note of such a try begins: one that was made in the instant of its death is not told apart by time."""


async def last_tries(app: Redrive, items: Iterable[Item]) -> dict[str, Attempt]:
    """By id, for those that have one."""
    asked = [item.id for item in items if _was_in_hand(item)]
    found: dict[str, Attempt] = {}
    for start in range(0, len(asked), BITE):
        those = await asyncio.gather(*[_read(app._store, each) for each in asked[start : start + BITE]])  # noqa: SLF001 - receipts are of redrive
        found |= {each.item.id: one for each in those if each is not None and (one := last_try(each)) is not None}
    return found


def last_try(history: History) -> Attempt | None:
    """None if nobody has tried it since it became a letter, or it was not refused then."""
    letter = history.item.letter
    for one in reversed(history.attempts):
        if letter is None or one.started_at < letter.died_at:
            return None
        if one.failure is not None:
            # Any other is the one that it died of.
            return one if one.ending is Ending.FAILED and one.note.startswith(IN_PLACE) else None
    return None


def _was_in_hand(item: Item) -> bool:
    letter = item.letter
    return letter is not None and item.leased_at is not None and item.leased_at >= letter.died_at


async def _read(store: Store, item_id: str) -> History | None:
    try:
        return await store.get(item_id)
    except NotFound:  # removed since it was found
        return None
