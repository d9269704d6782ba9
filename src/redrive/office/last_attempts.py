"""The last failed attempt on a letter in place, since it died: why it is still a letter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from redrive.core.item import Attempt, Ending, History, Item
from redrive.errors import NotFound
from redrive.office.in_place import IN_PLACE

HISTORIES_AT_ONCE = 50


async def last_attempts(items: Iterable[Item], history: Callable[[str], Awaitable[History]]) -> dict[str, Attempt]:
    """By id. Reads histories only of letters leased since they died."""

    async def read(item_id: str) -> History | None:
        try:
            return await history(item_id)
        except NotFound:  # removed since it was found
            return None

    ids = [
        item.id
        for item in items
        if item.letter is not None and item.leased_at is not None and item.leased_at >= item.letter.died_at
    ]
    found: dict[str, Attempt] = {}
    for start in range(0, len(ids), HISTORIES_AT_ONCE):
        histories = await asyncio.gather(*[read(each) for each in ids[start : start + HISTORIES_AT_ONCE]])
        found |= {each.item.id: last for each in histories if each and (last := last_attempt(each)) is not None}
    return found


def last_attempt(history: History) -> Attempt | None:
    """None if there was none."""
    letter = history.item.letter
    for attempt in reversed(history.attempts):
        if letter is None or attempt.started_at < letter.died_at:
            return None
        if attempt.failure is not None:
            # The attempt that the letter died of may have begun in the same millisecond.
            return attempt if attempt.ending is Ending.FAILED and attempt.note.startswith(IN_PLACE) else None
    return None
