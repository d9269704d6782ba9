"""Letters by a tag. An index of tags is in the order of enqueue, pages of letters in the order of death.

So up to FEW_TAGGED of them are read at once and sorted. Where there are more, they are met on the way through the
order of death.
"""

from __future__ import annotations

from typing import NamedTuple

from redrive.core import select
from redrive.core.select import And, Match, Selection

FEW_TAGGED = 10_000


class Tagged(NamedTuple):
    """A tag that whatever matches must have, and what else is asked of it."""

    tag: str
    rest: Selection


def tagged_of(selection: Selection) -> Tagged | None:
    parts = list(select.conjuncts(selection))
    for part in parts:
        if isinstance(part, Match) and (part.field, part.op) == ("tag", "=") and _storable(part.value):
            return Tagged(str(part.value), And(tuple([one for one in parts if one is not part])))
    return None


def _storable(value: object) -> bool:
    """A NUL or half a character is in no tag, and not every engine can be asked for it."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
