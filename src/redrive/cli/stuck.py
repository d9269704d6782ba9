"""What stands still because a letter goes first: no worker will ever take it, and nothing of it is due."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from redrive.core.item import Item, Terms, short_id
from redrive.core.select import And, Match, Or
from redrive.core.states import State
from redrive.core.verbs import QueueTally
from redrive.errors import NotFound
from redrive.stores.base import Store

LOOKED_AT = 500
LINES = 20
"""Of a queue, so many lines are asked whom they wait for: that there are some matters more than how many."""
BLOCKERS = 3


class Stuck(Struct, frozen=True):
    """`count` items of the queue wait for `letters`, which are dead; `more`: not all that wait were looked at."""

    queue: str
    count: int
    letters: tuple[str, ...]
    more: bool

    def __str__(self) -> str:
        first = short_id(self.letters[0])
        whom = f"dead letter {first}" if len(self.letters) == 1 else f"{len(self.letters)} dead letters, as {first}"
        verb = "waits" if self.count == 1 and not self.more else "wait"
        return f"{self.count:,}{' or more' if self.more else ''} {verb} behind {whom}"


async def stuck(store: Store, queues: tuple[QueueTally, ...]) -> tuple[Stuck, ...]:
    """Costs nothing where nobody waits, or nothing is dead. What a queue parks is counted by the store."""
    if not any(row.open + row.archived + row.trash for row in queues):
        return ()
    found = [await _of(store, row.queue) for row in queues if row.held]
    return tuple([each for each in found if each is not None])


async def _of(store: Store, queue: str) -> Stuck | None:
    waits = Or((Match("hold", "=", "order"), Match("hold", "=", "after")))
    page = await store.find(And((Match("queue", "=", queue), Match("state", "=", State.READY), waits)), LOOKED_AT)
    lines: dict[str, list[Item]] = {}
    for item in page.items:
        if "parked" not in item.hold:
            lines.setdefault(_line(item), []).append(item)
    count, letters = 0, dict[str, None]()
    for line in list(lines.values())[:LINES]:
        letter = await _letter_before(store, line[0].id)
        if letter is not None:
            count += len(line)
            letters[letter] = None
    more = page.next is not None or len(lines) > LINES
    return Stuck(queue, count, tuple(letters), more) if letters else None


def _line(item: Item) -> str:
    """Those behind one head wait for the same one; who waits for items of its own is a line of its own."""
    key = (item.terms or Terms()).order_key
    return f"key {key}" if item.hold == "order" else f"item {item.id}"


async def _letter_before(store: Store, item_id: str) -> str | None:
    """The first dead one of those it waits for. What ends while we look is no trouble."""
    with suppress(NotFound):
        for blocker in (await store.get(item_id)).blocked_by[:BLOCKERS]:
            if (await store.get(blocker)).item.state is State.DEAD:
                return blocker
    return None
