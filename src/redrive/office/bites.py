"""Large sets: read page by page, and changed in bites, each atomic and none so long that workers wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import chain
from typing import TypeVar

from redrive.core.acts import (
    Act,
    Amended,
    Change,
    Expire,
    Move,
    Replay,
)
from redrive.core.item import Item
from redrive.core.select import And, Ids, Selection
from redrive.core.verbs import IdPage, Page
from redrive.stores.base import IDS_LIMIT, PAGE_LIMIT, Store

P = TypeVar("P", Page, IdPage)

AT_ONCE = 2
"""Bites that are on their way together: while the store is busy with one, the next is being made."""

Bite = tuple[Ids, Change]
"""Items of a large act that are changed in one write, and how."""


def bites_of(ids: Sequence[str], change: Change) -> list[Bite]:
    return [(Ids(tuple(ids[start : start + PAGE_LIMIT])), change) for start in range(0, len(ids), PAGE_LIMIT)]


async def pages(find: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """All pages of a search, by a function of the cursor. A page is read when the one before it has been used."""
    page = await find(None)
    yield page
    while page.next is not None:
        page = await find(page.next)
        yield page


async def ids_of(store: Store, selection: Selection, *, oldest: bool = False) -> list[str]:
    """All ids that the selection matches now: last died first, or longest dead first."""
    found = pages(lambda cursor: store.ids(selection, IDS_LIMIT, cursor, oldest=oldest))
    return [each async for page in found for each in page.ids]


async def items_of(store: Store, ids: Sequence[str], also: Selection | None = None) -> list[Item]:
    """Those that exist, and match `also`, in any order."""
    found: list[Item] = []
    for start in range(0, len(ids), PAGE_LIMIT):
        these = Ids(tuple(ids[start : start + PAGE_LIMIT]))
        found += await store.find(these if also is None else And((these, also)), PAGE_LIMIT)
    return found


async def amend_in_bites(store: Store, bites: Sequence[Bite], act: Act) -> Amended:
    """Repeating it, under the same request, resumes it. Where the order of the writes shows, in places in order keys or
    times of death, one bite goes after the other.
    """
    done: list[Amended] = []
    at_once = 1 if any(isinstance(change, Replay | Move | Expire) for _, change in bites) else AT_ONCE
    for start in range(0, len(bites), at_once):
        amends = [store.amend(those, change, act) for those, change in bites[start : start + at_once]]
        # All of them to their end, also if one fails: none is left behind to go on by itself.
        for answer in await asyncio.gather(*amends, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            done.append(answer)
    return joined(done)


def joined(parts: Sequence[Amended]) -> Amended:
    return Amended(
        tuple(chain.from_iterable([each.changed for each in parts])),
        tuple(chain.from_iterable([each.already for each in parts])),
        tuple(chain.from_iterable([each.skipped for each in parts])),
    )
