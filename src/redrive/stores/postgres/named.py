"""Items by their ids, or by how these begin: what is asked for are ids, whatever else is asked of them.

Ids that begin somehow are looked up first. The planner would have to guess whether so many do that it meets enough of
them on the way through all, or so few that it never does. Where they are more than FEW_NAMED, they are met on the way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.core import select
from redrive.core.select import And, Ids, Match, Selection, glob_match
from redrive.stores.postgres.compile import storable
from redrive.stores.postgres.rows import Row

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

FEW_NAMED = 10_000
_LAST_CHAR = "\U0010ffff"
_BEFORE_SURROGATES, _BEHIND_SURROGATES = "\ud7ff", "\ue000"

Ask = Callable[[str, Sequence[Any]], Awaitable[list[Row]]]
"""Runs a statement with its values."""


async def by_ids(session: Session, ask: Ask, selection: Selection) -> Selection:
    """The same, with ids in front where few can match."""
    parts = tuple(select.conjuncts(selection))
    if any(isinstance(part, Ids) for part in parts):
        return selection
    ids = select.ids_of(selection)
    if ids is None and (span := next(filter(None, map(_span, parts)), None)) is not None:
        begin, end, pattern = span
        rows = await ask(session.sql("find", "named"), (begin, end, FEW_NAMED + 1))
        if len(rows) <= FEW_NAMED:
            ids = tuple([item_id for (item_id,) in rows if glob_match(pattern, item_id)])
    return selection if ids is None else And((Ids(ids), *parts))


class Named(NamedTuple):
    """Ids that whatever matches has one of, and what else is asked of it."""

    ids: tuple[str, ...]
    rest: Selection


def ids_in(selection: Selection) -> Named | None:
    parts = list(select.conjuncts(selection))
    for part in parts:
        if isinstance(part, Ids):
            return Named(part.ids, And(tuple([one for one in parts if one is not part])))
    return None


def _span(part: Selection) -> tuple[str, str, str] | None:
    """From where on and up to where ids begin like that, and the whole pattern."""
    if not isinstance(part, Match) or (part.field, part.op) != ("id", "glob"):
        return None
    pattern = str(part.value)
    begin, star, _ = pattern.partition("*")
    end = _behind(begin)
    return (begin, end, pattern) if star and end and storable((begin,)) else None


def _behind(begin: str) -> str:
    """The first text behind all that begin so, as bytes are compared; "" if there is none."""
    shorter = begin.rstrip(_LAST_CHAR)
    if not shorter:
        return ""
    last = shorter[-1]
    return shorter[:-1] + (_BEHIND_SURROGATES if last == _BEFORE_SURROGATES else chr(ord(last) + 1))
