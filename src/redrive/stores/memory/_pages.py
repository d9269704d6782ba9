"""`find` and `ids` of the reference store: every item in the order of the search, judged by the one evaluator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from redrive.core import select
from redrive.core.item import Instant, Item
from redrive.core.select import Ids, Selection
from redrive.core.verbs import Page
from redrive.stores import cursor as cursors
from redrive.stores.memory._table import Table
from redrive.stores.residue import SCAN_LIMIT, refuse, split


class Asked(NamedTuple):
    """What a page is asked for; `oldest`: from which end."""

    selection: Selection
    limit: int
    cursor: str | None
    oldest: bool


def page(table: Table, asked: Asked, now: Instant, whole: Callable[[Item], Item]) -> Page:
    """`whole` decrypts, for those that are asked for what is in their payload."""
    selection, limit, cursor, oldest = asked
    indexed, rest = split(selection)
    by_death, pages = select.pins_dead(selection), cursors.Pages(selection, oldest)
    after = cursors.read(pages.order, pages.opened(cursor))
    found: list[Item] = []
    scanned, candidates, last = 0, 0, (0, 0)
    for place, kept in table.in_order(by_death=by_death, oldest=oldest, after=after):
        scanned += 1
        item = _judged(table, kept)
        if not select.matches(indexed, item, now):
            continue
        candidates += rest is not None
        if rest is None or select.matches(rest, whole(item), now):
            if len(found) == limit:
                return Page(tuple(found), pages.sealed(cursors.write(pages.order, last)), scanned)
            found.append(table.shown(kept))
            last = place
        if candidates == SCAN_LIMIT:
            return Page(tuple(found), pages.sealed(cursors.write(pages.order, place)), scanned)
    return Page(tuple(found), None, scanned)


def meant(table: Table, selection: Selection, now: Instant) -> list[Item]:
    """By an act: in the order given for ids, else earliest enqueued first."""
    if isinstance(selection, Ids):
        return table.present(selection.ids)
    refuse(selection)
    return [item for item in table.oldest_first() if select.matches(selection, _judged(table, item), now)]


def _judged(table: Table, item: Item) -> Item:
    """With all that it waits for: who is parked is shown as that alone, but may wait for more than its turn."""
    shown = table.shown(item)
    return item if shown is item else structs.replace(item, hold=f"{shown.hold}:{item.hold}")
