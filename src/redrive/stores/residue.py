"""What no store answers by itself: texts anywhere in an item, and paths into payloads.

A store is asked for candidates by a weaker selection that it can compile, and the one evaluator judges them. So all
stores agree on hostile payloads, and a page that matches nothing still ends after SCAN_LIMIT candidates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar, assert_never

from msgspec import structs

from redrive.core import select
from redrive.core.item import Instant, Item
from redrive.core.rendering import render
from redrive.core.select import EVERYTHING, FIELDS, And, Ids, Match, Not, Or, Path, Selection, Text
from redrive.core.verbs import IdPage, Page
from redrive.errors import BadFilter, ConfigError
from redrive.stores import cursor as cursors
from redrive.stores.aside import aside

T = TypeVar("T")

SCAN_LIMIT = 10_000
"""Candidates that one page looks at."""
CHUNK = 200
"""Candidates read at once: they come with their payloads."""
HEAVY = 1 << 18
"""Bytes of payloads in a chunk from which on they are judged in a thread."""
UNCOMPILED = frozenset({"text"})
"""Fields that no store keeps apart from the evidence."""

_LETTERS = Match("state", "=", "dead")


class Split(NamedTuple):
    """`indexed` holds for all that the whole holds for; `rest` is to be asked of those, None if they all match."""

    indexed: Selection
    rest: Selection | None


class Looks(NamedTuple):
    """How a store looks by itself, for what it compiles. `oldest`: from which end `find` and `ids` begin.

    Both take and give the place where a page starts as `cursors` writes it, without a seal.
    """

    find: Callable[[Selection, int, str | None], Awaitable[Page]]
    ids: Callable[[Selection, int, str | None], Awaitable[IdPage]]
    now: Callable[[], Awaitable[Instant]]
    oldest: bool = False


class Found(NamedTuple, Generic[T]):
    kept: tuple[T, ...]
    next: str | None
    scanned: int


def split(selection: Selection) -> Split:
    """What the store compiles, and what is left. BadFilter where it would be left with every item there is."""
    rest = tuple([part for part in select.conjuncts(selection) if not _compiles(part)])
    if not rest:
        return Split(selection, None)
    indexed = _weaker(selection)
    if select.pins_dead(selection):
        # Letters are few, and walked in the order of their death.
        indexed = indexed if select.pins_dead(indexed) else And((_LETTERS, indexed))
    elif indexed == EVERYTHING:
        raise BadFilter(
            "texts and payloads of all items are not searched",
            text=render(selection),
            column=1,
            hint="add queue:, state: or another indexed field, such as state:dead or queue:emails",
        )
    return Split(indexed, rest[0] if len(rest) == 1 else And(rest))


def refuse(selection: Selection) -> None:
    """For acts, which are one write: they cannot look into payloads meanwhile."""
    if not _compiles(selection):
        raise refused()


def refused() -> ConfigError:
    return ConfigError(
        "no act is done by a text or a payload", field="filter", hint="find the ids first, and act on those"
    )


def _compiles(selection: Selection) -> bool:
    match selection:
        case Text() | Path():
            return False
        case Match(field):
            return field not in UNCOMPILED
        case And(parts) | Or(parts):
            return all(_compiles(part) for part in parts)
        case Not(part):
            return _compiles(part)
        case Ids():
            return True
        case _:
            assert_never(selection)


def _weaker(selection: Selection) -> Selection:
    """Holds wherever the selection does, and compiles."""
    if _compiles(selection):
        return selection
    if isinstance(selection, And | Or):
        weaker = [_weaker(part) for part in selection.parts]
        if isinstance(selection, And):
            return And(tuple([part for part in weaker if part != EVERYTHING]))
        return EVERYTHING if EVERYTHING in weaker else Or(tuple(weaker))
    return EVERYTHING


async def page(looks: Looks, selection: Selection, limit: int, cursor: str | None) -> Page:
    """Stores read and write bare places; the cursors that people get are sealed here."""
    asked, pages = split(selection), cursors.Pages(selection, looks.oldest)
    after = pages.opened(cursor)
    if asked.rest is None:
        found = await looks.find(selection, limit, after)
    else:
        found = Page(*await _search(looks, asked, limit, after, lambda item: item))
    return found if found.next is None else structs.replace(found, next=pages.sealed(found.next))


async def ids(looks: Looks, selection: Selection, limit: int, cursor: str | None) -> IdPage:
    asked, pages = split(selection), cursors.Pages(selection, looks.oldest)
    after = pages.opened(cursor)
    if asked.rest is None:
        found = await looks.ids(selection, limit, after)
    else:
        found = IdPage(*(await _search(looks, asked, limit, after, lambda item: item.id))[:2])
    return found if found.next is None else structs.replace(found, next=pages.sealed(found.next))


async def _search(looks: Looks, asked: Split, limit: int, cursor: str | None, keep: Callable[[Item], T]) -> Found[T]:
    """What the rest holds for, among what the store finds."""
    rest = EVERYTHING if asked.rest is None else asked.rest
    letters = select.pins_dead(asked.indexed)
    timed = any(FIELDS.get(field) == "duration" for field in select.fields_of(rest))
    now = await looks.now() if timed else 0
    kept: list[T] = []
    last, scanned = cursor, 0
    while True:
        candidates = await looks.find(asked.indexed, min(CHUNK, SCAN_LIMIT - scanned), cursor)
        scanned += len(candidates)
        for item in await _judged(candidates.items, rest, now):
            if len(kept) == limit:
                return Found(tuple(kept), last, scanned)
            kept.append(keep(item))
            last = _cursor_at(item, letters=letters, oldest=looks.oldest)
        cursor = candidates.next
        if cursor is None or scanned >= SCAN_LIMIT:
            return Found(tuple(kept), cursor, scanned)


async def _judged(items: Sequence[Item], rest: Selection, now: Instant) -> list[Item]:
    def judge() -> list[Item]:
        return [item for item in items if select.matches(rest, item, now)]

    return await aside(judge) if sum([len(item.payload) for item in items]) > HEAVY else judge()


def _cursor_at(item: Item, *, letters: bool, oldest: bool) -> str:
    died = item.letter.died_at if letters and item.letter is not None else item.seq
    return cursors.write(cursors.order_of(letters=letters, oldest=oldest), (died, item.seq))
