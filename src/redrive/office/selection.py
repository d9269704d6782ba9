"""The items that an act is about: by ids and prefixes, a filter or a saved view, each judged before it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from msgspec import Struct

from redrive.core.acts import (
    NOT_HEAD,
    Change,
    Move,
    Recall,
    Refusal,
    Restore,
    Skip,
    WaitingChange,
    parked_refusal,
    recall_refusal,
    refusal,
)
from redrive.core.durations import format as format_duration
from redrive.core.filters import parse as parse_filter
from redrive.core.filters import render
from redrive.core.item import Instant, Item, Terms, holder
from redrive.core.select import Ids, Selection, fields_of
from redrive.core.states import Disposition
from redrive.core.terms import is_parked
from redrive.errors import NotFound
from redrive.office.bites import pages
from redrive.office.letters import Letters, letters_matching
from redrive.office.recall import replayed
from redrive.office.views import Views
from redrive.office.waiting import waiting
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.checks import there_already

EVERYWHERE = "disposition:open,archived,trash"
AT_ONCE = 4000
"""Characters of ids in one question: a filter has at most 4096."""
READ_AT_ONCE = 32
MEANWHILE = {
    Disposition.OPEN: Refusal("it was restored since", "open"),
    Disposition.ARCHIVED: Refusal("it was archived since", "archived"),
    Disposition.TRASH: Refusal("it was discarded since", "trash"),
}


class Choice(Struct, frozen=True):
    """`where` and `view` together mean what matches both; "" is every open letter."""

    ids: tuple[str, ...] = ()
    where: str | None = None
    view: str | None = None

    @property
    def is_set(self) -> bool:
        """Named by a filter, so that its size is not known yet."""
        return self.where is not None or self.view is not None


class Chosen(Struct, frozen=True):
    """An item without its payload, since there may be many. `refused`: why the change is not possible."""

    id: str
    queue: str
    error: str
    refused: Refusal | None
    disposition: Disposition | None = None


async def whole_filter(store: Store, where: str | None, view: str | None, since: int | None = None) -> str:
    """One text of a filter, a saved view and a time since death."""
    parts = [where or ""]
    if view is not None:
        parts.insert(0, (await Views(store, actor="").get(view)).filter)
    if since is not None:
        parts.append(f"died<{format_duration(since)}")
    given = [part for part in parts if part.strip()]
    return given[0] if len(given) == 1 else " ".join(f"({part})" for part in given)


async def choose(store: Store, letters: Letters, choice: Choice, change: Change, otherwise: str = "") -> list[Chosen]:
    """The longest dead of a filter first; ids in the order given. Raises NotFound, with `otherwise` in it, if an id is
    not found: then nothing is to be done at all.
    """
    if choice.is_set:
        return await _by_filter(store, await whole_filter(store, choice.where, choice.view), change)
    return await _by_ids(store, letters, choice.ids, change, otherwise)


async def gone_since(
    store: Store, letters: Letters, choice: Choice, change: Change, chosen: Sequence[Chosen]
) -> dict[str, Refusal]:
    """Letters of a filter that were archived, discarded, restored or moved since they were chosen, with what was done.

    A filter means letters as they were when they were counted. Changes between this look and the act still apply.
    """
    now = {one.id: (one.disposition, one.queue) for one in await choose(store, letters, choice, change)}
    other = [one for one in chosen if now.get(one.id) != (one.disposition, one.queue)]
    gone: dict[str, Refusal] = {}
    for start in range(0, len(other), READ_AT_ONCE):
        some = other[start : start + READ_AT_ONCE]
        for one, why in zip(some, await asyncio.gather(*[_became(letters, one) for one in some]), strict=True):
            if why is not None:
                gone[one.id] = why
    return gone


async def _became(letters: Letters, one: Chosen) -> Refusal | None:
    """None if it is where it was (the filter may be about its age), or no letter any more, which the store reports."""
    try:
        item = (await letters.get(one.id)).item
    except NotFound:
        return None
    if item.letter is None:
        return None
    if item.letter.disposition != one.disposition:
        return MEANWHILE[item.letter.disposition]
    return None if item.queue == one.queue else Refusal(f"it was moved to {item.queue} since", "moved")


async def _by_filter(store: Store, where: str, change: Change) -> list[Chosen]:
    selection = _meant(where, change)
    chosen: list[Chosen] = []
    async for page in pages(lambda cursor: store.find(selection, PAGE_LIMIT, cursor, oldest=True)):
        chosen += await _judged(store, page.items, change)
    return chosen


def _meant(where: str, change: Change) -> Selection:
    """Letters, but for changes of waiting items. To restore means what was put away."""
    if isinstance(change, WaitingChange):
        return waiting(where)
    if isinstance(change, Recall):
        return replayed(where)
    away = isinstance(change, Restore) and "disposition" not in fields_of(parse_filter(where))
    return letters_matching(f"{where and f'({where})'} disposition:archived,trash" if away else where)


async def _by_ids(store: Store, letters: Letters, texts: Sequence[str], change: Change, otherwise: str) -> list[Chosen]:
    found = await _letters(store, texts) if len(texts) > 1 else {}
    items: dict[str, Item] = {}
    for text in texts:
        item = found.get(text)
        if item is None:
            try:
                item = (await letters.get(text)).item
            except NotFound as error:
                raise NotFound(f"{error.message}; {otherwise}", hint=error.hint) from None
        items[item.id] = item
    return await _judged(store, list(items.values()), change)


async def _letters(store: Store, texts: Sequence[str]) -> dict[str, Item]:
    """Many at once, since thousands of ids may be piped; an id that is not found here is looked up by itself."""
    found: dict[str, Item] = {}
    for some in _asked_together(texts):
        page = await store.find(letters_matching(f"{render(Ids(some))} {EVERYWHERE}"), PAGE_LIMIT)
        found |= {item.id: item for item in page}
    return found


def _asked_together(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """As many as one filter has room for, quotes and escapes included."""
    some: list[str] = []
    room = AT_ONCE
    for text in texts:
        size = 2 * len(text) + 3
        if size > AT_ONCE:
            continue
        if size > room:
            yield tuple(some)
            some, room = [], AT_ONCE
        some.append(text)
        room -= size
    if some:
        yield tuple(some)


async def _judged(store: Store, items: Sequence[Item], change: Change) -> list[Chosen]:
    """The store's time is needed only where a letter is, or was, worked on."""
    leased = any(item.letter is not None and item.lease_until is not None for item in items)
    now = (await store.tally(members=False)).at if leased else 0
    return [_chosen(item, change, now) for item in items]


def _chosen(item: Item, change: Change, now: Instant) -> Chosen:
    letter = item.letter
    reserved = letter.reserved if letter else ""
    held = holder(item, now)
    refused = refusal(change, item.state, letter.disposition if letter else None, holder=held, reserved=reserved)
    if isinstance(change, Recall):
        # Only the store knows whether a worker has leased it since.
        refused = recall_refusal(item.state, item.deliveries, item.deliveries if item.replays else None)
    refused = refused or parked_refusal(change, parked=is_parked(item.hold))
    if refused is None and isinstance(change, Move) and item.queue == change.queue:
        refused = there_already(item.queue)
    if refused is None and isinstance(change, Skip) and not (item.terms or Terms()).order_key:
        refused = NOT_HEAD
    return Chosen(
        item.id, item.queue, letter.failure.type if letter else "", refused, letter.disposition if letter else None
    )
