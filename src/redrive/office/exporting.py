"""Letters out of the store as records, page by page, while the next one is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from redrive.core.item import History, Item, payloads_of
from redrive.core.select import Selection
from redrive.errors import DecryptionFailed
from redrive.office.records import Record, record_of
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.bodies import as_stored

T = TypeVar("T")

READ_AT_ONCE = 32
SLICE = 100
"""Letters that an export makes into records before the loop turns."""


async def exported_items(store: Store, items: Sequence[Item], *, attempts: bool, decrypt: bool = False) -> list[Record]:
    if not attempts:
        return [_record_of(item, None, decrypt=decrypt) for item in items]
    records: list[Record] = []
    for start in range(0, len(items), READ_AT_ONCE):
        ids = [item.id for item in items[start : start + READ_AT_ONCE]]
        found = await asyncio.gather(*[_read(store.get(each), decrypt=decrypt) for each in ids])
        # Whoever was replayed meanwhile is no letter any more.
        records += [_record_of(each.item, each, decrypt=decrypt) for each in found if each.item.letter is not None]
    return records


def _read(reading: Coroutine[Any, Any, T], *, decrypt: bool) -> Coroutine[Any, Any, T]:
    """An export has encrypted payloads as they are, unless it is to decrypt them."""
    return reading if decrypt else as_stored(reading)


def _record_of(item: Item, history: History | None, *, decrypt: bool) -> Record:
    for part in payloads_of(history or History(item)) if decrypt else ():
        if part.sealed:
            hint = "give this process the key, or export without decrypt"
            why = part.flaw.partition(" (")[0]  # without the hint of its own
            raise DecryptionFailed(f"letter {item.id}: {why}", key=part.sealed, hint=hint)
    return record_of(item, history)


async def exported_pages(
    store: Store, selection: Selection, *, attempts: bool = False, decrypt: bool = False
) -> AsyncGenerator[list[Record]]:
    """By slices: while one page is made into records and written, the store is asked for the next."""
    asked = asyncio.create_task(_read(store.find(selection, PAGE_LIMIT), decrypt=decrypt))
    try:
        while True:
            page = await asked
            if page.next is not None:
                asked = asyncio.create_task(_read(store.find(selection, PAGE_LIMIT, page.next), decrypt=decrypt))
            for start in range(0, len(page.items), SLICE):
                # The question goes out, and its answer comes in, between the slices.
                await asyncio.sleep(0)
                part = page.items[start : start + SLICE]
                yield await exported_items(store, part, attempts=attempts, decrypt=decrypt)
            if page.next is None:
                return
    finally:
        # Whoever stops reading leaves a page behind that nobody waits for.
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
