"""Letters out of the store as records, page by page, while the next one is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from redrive.core.item import Item
from redrive.core.select import Selection
from redrive.office.records import Record, record_of
from redrive.stores.base import PAGE_LIMIT, Store

READ_AT_ONCE = 32
SLICE = 100
"""Letters that an export makes into records before the loop turns."""


async def exported_items(store: Store, items: Sequence[Item], *, attempts: bool) -> list[Record]:
    if not attempts:
        return [record_of(item) for item in items]
    records: list[Record] = []
    for start in range(0, len(items), READ_AT_ONCE):
        ids = [item.id for item in items[start : start + READ_AT_ONCE]]
        found = await asyncio.gather(*[store.get(each) for each in ids])
        # Whoever was replayed meanwhile is no letter any more.
        records += [record_of(each.item, each) for each in found if each.item.letter is not None]
    return records


async def exported_pages(store: Store, selection: Selection, *, attempts: bool = False) -> AsyncGenerator[list[Record]]:
    """By slices: while one page is made into records and written, the store is asked for the next."""
    asked = asyncio.create_task(store.find(selection, PAGE_LIMIT))
    try:
        while True:
            page = await asked
            if page.next is not None:
                asked = asyncio.create_task(store.find(selection, PAGE_LIMIT, page.next))
            for start in range(0, len(page.items), SLICE):
                # The question goes out, and its answer comes in, between the slices.
                await asyncio.sleep(0)
                yield await exported_items(store, page.items[start : start + SLICE], attempts=attempts)
            if page.next is None:
                return
    finally:
        # Whoever stops reading leaves a page behind that nobody waits for.
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
