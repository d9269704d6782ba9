"""What the store says at the end, read through its verbs only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from redrive.core.item import History, Item
from redrive.core.select import EVERYTHING
from redrive.core.states import State
from redrive.core.verbs import LetterChange
from redrive.stores.base import PAGE_LIMIT, Store

CHANGES = 100
"""In a page."""


@dataclass(frozen=True)
class Survey:
    """`miscounts`: where kept counters differ from a recount. `pruned`: asked for, gone, and a tombstone says so."""

    finals: dict[str, History] = field(default_factory=dict)
    miscounts: dict[str, str] = field(default_factory=dict)
    pruned: frozenset[str] = frozenset()


async def survey(store: Store, asked: Iterable[str] = ()) -> Survey:
    items = await _everything(store)
    finals = {item.id: await store.get(item.id) for item in items}
    miscounts = {**await _queue_miscounts(store, items), **await _cause_miscounts(store, items)}
    miscounts |= _change_miscounts(await changes_after(store, 0), items)
    if len(finals) != len(items):
        miscounts["find"] = "find gave an item twice"
    pruned = [key for key in asked if key not in finals and await store.tombstone(key) is not None]
    return Survey(finals, miscounts, frozenset(pruned))


async def _everything(store: Store) -> list[Item]:
    items: list[Item] = []
    cursor: str | None = None
    while True:
        page = await store.find(EVERYTHING, PAGE_LIMIT, cursor)
        items += page.items
        cursor = page.next
        if cursor is None:
            return items


async def changes_after(store: Store, number: int) -> list[LetterChange]:
    """In pages, as a reader gets them."""
    found: list[LetterChange] = []
    while page := await store.changes(found[-1].number if found else number, CHANGES):
        found += page
    return found


def lies(item: Item | None) -> str:
    """The disposition of a letter; "" for what is none."""
    return "" if item is None or item.letter is None else str(item.letter.disposition)


def _change_miscounts(changes: list[LetterChange], items: list[Item]) -> dict[str, str]:
    """A reader of all changes has every letter as it is, and each item once."""
    told = {one.id: lies(one.item) for one in changes}
    numbers = [one.number for one in changes]
    letters = {item.id: lies(item) for item in items if lies(item)}
    found = {f"change of {key}": f"it is told as {told.get(key)!r}" for key in letters if told.get(key) != letters[key]}
    found |= {f"change of {key}": "no letter is told as one" for key in told.keys() - letters.keys() if told[key]}
    return found if len(told) == len(numbers) and numbers == sorted(numbers) else found | {"changes": f"{numbers}"}


def _column(item: Item) -> str:
    if item.state is State.DEAD and item.letter is not None:
        return str(item.letter.disposition)
    if item.state is State.READY and item.hold:
        return "parked" if item.hold.startswith("parked:") else "held"
    return str(item.state)


async def _queue_miscounts(store: Store, items: list[Item]) -> dict[str, str]:
    counted = Counter((item.queue, _column(item)) for item in items)
    columns = ("ready", "held", "parked", "leased", "done", "open", "archived", "trash", "cancelled")
    kept = {(row.queue, column): getattr(row, column) for row in (await store.tally()).queues for column in columns}
    return {
        f"{queue}/{column}": f"kept {kept.get((queue, column), 0)}, counted {counted[queue, column]}"
        for queue, column in {*counted, *kept}
        if kept.get((queue, column), 0) != counted[queue, column]
    }


async def _cause_miscounts(store: Store, items: list[Item]) -> dict[str, str]:
    letters = [(item.queue, item.letter) for item in items if item.letter is not None]
    counted = Counter((queue, letter.failure.cause) for queue, letter in letters if letter.disposition == "open")
    kept = {(row.queue, row.cause): row.count for row in await store.causes(limit=PAGE_LIMIT)}
    return {
        f"{queue}/cause {cause}": f"kept {kept.get((queue, cause), 0)}, counted {counted[queue, cause]}"
        for queue, cause in {*counted, *kept}
        if kept.get((queue, cause), 0) != counted[queue, cause]
    }
