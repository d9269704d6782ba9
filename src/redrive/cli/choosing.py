"""Which items an act is about: ids and prefixes, ids from stdin, a filter, a saved view, or all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from redrive.core.durations import format as format_duration
from redrive.core.filters import parse as parse_filter
from redrive.core.filters import render
from redrive.core.item import Instant, Item, Terms, holder
from redrive.core.select import Ids, fields_of
from redrive.core.states import Disposition
from redrive.core.verbs import Change, Move, Restore, SetPolicy, Skip, refusal
from redrive.engine.registry import unknown_queue
from redrive.errors import ConfigError, NotFound
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.checks import there_already

if TYPE_CHECKING:
    from redrive.app import Redrive

F = TypeVar("F", bound=Callable[..., Any])
EVERYWHERE = "disposition:open,archived,trash"
AT_ONCE = 4000
"""Characters of ids in one question: a filter has at most 4096."""
READ_AT_ONCE = 32
KEEPS_NOTHING_BACK = "it keeps nothing back: it is not the head of an order key"
"""As the stores say it."""
MEANWHILE = {Disposition.OPEN: "restored", Disposition.ARCHIVED: "archived", Disposition.TRASH: "discarded"}


class Choice(Struct, frozen=True):
    ids: tuple[str, ...] = ()
    where: str | None = None
    view: str | None = None

    @property
    def is_a_set(self) -> bool:
        """Named by what it has in common, so that nobody has counted it yet."""
        return self.where is not None or self.view is not None


class Chosen(Struct, frozen=True):
    """What the question and the dry run need to know of an item. The payload is not kept: there may be many."""

    id: str
    queue: str
    error: str
    refused: str | None
    lies: Disposition | None = None


def choice_options(command: F) -> F:
    """[ID]... or -, --where, --view, --all; the command gets them as one `choice`."""

    @wraps(command)
    def chosen(*args: Any, ids: tuple[str, ...], where: str | None, view: str | None, every: bool, **rest: Any) -> Any:
        return command(*args, choice=_checked(ids, where, view, every=every), **rest)

    wrapped: Any = chosen
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    made: F = wrapped
    return made


_OPTIONS = (
    click.argument("ids", metavar="[ID]... | -", nargs=-1),
    click.option("--where", metavar="FILTER", help="Every letter that matches, instead of ids."),
    click.option("--view", metavar="NAME", help="Every letter of a saved view; with --where, those that match too."),
    click.option("--all", "every", is_flag=True, help="Every open letter."),
)


def _checked(ids: Sequence[str], where: str | None, view: str | None, *, every: bool) -> Choice:
    """What cannot be meant is said before the store is looked for."""
    by_set = where is not None or view is not None
    if bool(ids) + by_set + every != 1:
        said = "name letters by id, by --where or --view, or say --all, and only one of these"
        raise click.UsageError(said, ctx=click.get_current_context())
    if where is not None and not where.strip():
        raise ConfigError("it is empty", field="--where", hint="to mean every open letter, say --all")
    parse_filter(where or "")
    return Choice(named(ids), "" if every else where, view)


def known_queue(queue: str | None, *, new: bool) -> Callable[[Redrive], Awaitable[None]] | None:
    """A check that letters do not go, by a slip of the fingers, where nobody works."""
    if queue is None or new:
        return None

    async def check(app: Redrive) -> None:
        names = [row.queue for row in (await app.tally()).queues]
        if queue not in names:
            raise unknown_queue(queue, names, "--new makes it")

    return check


def named(ids: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order given; `-` stands for the first word of every line of stdin."""
    words: list[str] = []
    for word in ids:
        words += [line.split()[0] for line in sys.stdin if line.strip()] if word == "-" else [word]
    return tuple(dict.fromkeys(words))


async def whole_filter(app: Redrive, where: str | None, view: str | None, since: int | None = None) -> str:
    """One text of a filter, a saved view and a time since death."""
    parts = [where or ""]
    if view is not None:
        parts.insert(0, (await app.views.get(view)).filter)
    if since is not None:
        parts.append(f"died<{format_duration(since)}")
    said = [part for part in parts if part.strip()]
    return said[0] if len(said) == 1 else " ".join(f"({part})" for part in said)


async def choose(app: Redrive, choice: Choice, change: Change, otherwise: str) -> list[Chosen]:
    """`otherwise` is said when an id is not found: then nothing is done at all."""
    if choice.is_a_set:
        where = await whole_filter(app, choice.where, choice.view)
        return await _by_filter(app, where, change)
    return await _by_ids(app, choice.ids, change, otherwise)


async def gone_since(app: Redrive, choice: Choice, change: Change, chosen: Sequence[Chosen]) -> dict[str, str]:
    """Letters of a set that somebody put away or moved while a question stood open, and what became of each.

    A filter means letters as they lay when they were counted. What is done between this look and the act still counts.
    """
    now = {one.id: one for one in await choose(app, choice, change, "")}
    other = [
        one for one in chosen if one.id not in now or (now[one.id].lies, now[one.id].queue) != (one.lies, one.queue)
    ]
    gone: dict[str, str] = {}
    for start in range(0, len(other), READ_AT_ONCE):
        some = other[start : start + READ_AT_ONCE]
        for one, why in zip(some, await asyncio.gather(*[_became(app, one) for one in some]), strict=True):
            if why:
                gone[one.id] = why
    return gone


async def _became(app: Redrive, one: Chosen) -> str:
    """Empty if it lies where it lay (the filter may speak of its age), or is none any more: then the store says so."""
    try:
        item = (await app.letters.get(one.id)).item
    except NotFound:
        return ""
    if item.letter is None:
        return ""
    if item.letter.disposition != one.lies:
        return f"it was {MEANWHILE[item.letter.disposition]} since"
    return "" if item.queue == one.queue else f"it was moved to {item.queue} since"


async def _by_filter(app: Redrive, where: str, change: Change) -> list[Chosen]:
    # Whoever restores means what was put away, unless the filter says where to look.
    away = isinstance(change, Restore) and "disposition" not in fields_of(parse_filter(where))
    text = f"{where and f'({where})'} disposition:archived,trash" if away else where
    find = app.letters.find
    if isinstance(change, SetPolicy):
        find, text = app.find, f"({where}) state:ready"
    chosen: list[Chosen] = []
    cursor = None
    while True:
        page = await find(text, limit=PAGE_LIMIT, cursor=cursor)
        chosen += await _judged(app, page.items, change)
        cursor = page.next
        if cursor is None:
            return chosen


async def _by_ids(app: Redrive, texts: Sequence[str], change: Change, otherwise: str) -> list[Chosen]:
    letters = await _letters(app, texts) if len(texts) > 1 else {}
    items: dict[str, Item] = {}
    for text in texts:
        item = letters.get(text)
        if item is None:
            try:
                item = (await app.letters.get(text)).item
            except NotFound as error:
                raise NotFound(f"{error.message}; {otherwise}", hint=error.hint) from None
        items[item.id] = item
    return await _judged(app, list(items.values()), change)


async def _letters(app: Redrive, texts: Sequence[str]) -> dict[str, Item]:
    """Many at once, for those who pipe thousands of ids; whatever is not found here is looked for by itself."""
    found: dict[str, Item] = {}
    for some in _asked_together(texts):
        page = await app.letters.find(f"{render(Ids(some))} {EVERYWHERE}", limit=PAGE_LIMIT)
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


async def _judged(app: Redrive, items: Sequence[Item], change: Change) -> list[Chosen]:
    """The time matters only where somebody works on a letter, or did."""
    leased = any(item.letter is not None and item.lease_until is not None for item in items)
    now = (await app.tally()).at if leased else 0
    return [_chosen(item, change, now) for item in items]


def _chosen(item: Item, change: Change, now: Instant) -> Chosen:
    letter = item.letter
    refused = refusal(change, item.state, letter.disposition if letter else None, holder=holder(item, now))
    if refused is None and isinstance(change, Move) and item.queue == change.queue:
        refused = there_already(item.queue)
    if refused is None and isinstance(change, Skip) and not (item.terms or Terms()).order_key:
        refused = KEEPS_NOTHING_BACK
    return Chosen(
        item.id, item.queue, letter.failure.type if letter else "", refused, letter.disposition if letter else None
    )
