"""How letters divide: by queue, error, tag and so on. From kept counters where they say it, else by looking at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Literal, get_args

from msgspec import Struct

from redrive.core.item import Item, Letter
from redrive.core.select import Selection
from redrive.core.states import Disposition
from redrive.core.verbs import Tally
from redrive.errors import ConfigError
from redrive.office.bites import pages
from redrive.stores.base import PAGE_LIMIT, Store

By = Literal["cause", "queue", "error", "category", "route", "reason", "tag", "disposition"]
BYS: tuple[str, ...] = get_args(By)
LOOKED_AT = 100_000
"""Letters that one division looks at; the last ones to die."""


class Facet(Struct, frozen=True):
    value: str
    count: int


class Facets(Struct, frozen=True):
    """Most first. `letters` were counted; `whole` is False if there are more of them. Letters without a value (a route,
    a tag) are in no facet.
    """

    by: str
    letters: int
    facets: tuple[Facet, ...] = ()
    whole: bool = True


_VALUES: dict[str, Callable[[Item, Letter], Iterable[str]]] = {
    "cause": lambda _, letter: (letter.failure.cause,),
    "queue": lambda item, _: (item.queue,),
    "error": lambda _, letter: (letter.failure.type,),
    "category": lambda _, letter: (letter.failure.category,),
    "route": lambda _, letter: (letter.route,) if letter.route else (),
    "reason": lambda _, letter: (letter.reason,),
    "tag": lambda item, _: item.tags,
    "disposition": lambda _, letter: (letter.disposition,),
}


def check_by(by: object) -> str:
    if by not in BYS:
        raise ConfigError(f"{by!r} divides nothing", field="by", hint=f"use one of {', '.join(BYS)}")
    return str(by)


def kept_facets(tally: Tally, by: str, limit: int) -> Facets | None:
    """Of all open letters (of all letters, by disposition), from the counters; None where they do not tell."""
    if by == "queue":
        counts = Counter({row.queue: row.open for row in tally.queues})
    elif by == "route":
        counts = Counter({row.route: row.open for row in tally.routes if row.route})
    elif by == "disposition":
        counts = Counter({one: sum(getattr(row, one) for row in tally.queues) for one in map(str, Disposition)})
    else:
        return None
    of_all = sum(counts.values()) if by == "disposition" else sum(row.open for row in tally.queues)
    return Facets(by, of_all, _most(+counts, limit))


async def facets_of(store: Store, selection: Selection, by: str, limit: int) -> Facets:
    counts: Counter[str] = Counter()
    letters, whole, value = 0, True, _VALUES[by]
    async for item in walk(store, selection):
        if letters == LOOKED_AT:
            whole = False
            break
        if item.letter is not None:
            letters += 1
            counts.update(value(item, item.letter))
    return Facets(by, letters, _most(counts, limit), whole)


def _most(counts: Counter[str], limit: int) -> tuple[Facet, ...]:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple([Facet(value, count) for value, count in ordered[:limit]])


async def walk(store: Store, selection: Selection) -> AsyncIterator[Item]:
    """Everything that matches, page by page."""
    async for page in pages(lambda cursor: store.find(selection, PAGE_LIMIT, cursor)):
        for item in page:
            yield item
