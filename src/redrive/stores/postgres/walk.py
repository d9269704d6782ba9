"""By which index letters are walked, when the selection says by names which ones are meant.

The planner expects what it looks for to lie evenly among the rest. Where many letters of one cause lie far back, it
might walk past everything that came since. Written as bounds of a row, in the order of one index, only that one serves.
"""

from __future__ import annotations

from typing import NamedTuple

from redrive.core import select
from redrive.core.select import And, Match, Selection
from redrive.stores.postgres.compile import Compiled, storable
from redrive.stores.postgres.rows import indexed, short, shown

WALKS = (
    ("cause", "queue"),
    ("cause",),
    ("error", "queue"),
    ("error",),
    ("category", "queue"),
    ("category",),
    ("route",),
    ("queue",),
    (),
)
"""The names that indexes of letters begin with; each goes on with the disposition and the time of death."""
_COLUMNS = {
    "cause": "l.cause",
    "queue": "l.queue",
    "error": "l.error_short",
    "category": "l.category",
    "route": "l.route",
    "disposition": "l.disposition",
}


_ROUTED = Compiled("l.route <> ''")
"""Letters without a route are not in the index of routes."""


class Walk(NamedTuple):
    """Columns in the order of an index and what they equal; `rest` and `also` are left to be asked of each letter."""

    columns: tuple[str, ...]
    values: tuple[str, ...]
    rest: Selection
    also: tuple[Compiled, ...] = ()


def walk_of(selection: Selection) -> Walk | None:
    """None where no index begins with all the names: which of them is rarest, the planner can guess better."""
    parts = tuple(select.conjuncts(selection))
    named = {part.field: part for part in parts if isinstance(part, Match) and _is_name(part)}
    way = next((way for way in WALKS if {*way, "disposition"} == named.keys()), None)
    if way is None or {"died", "died_at"} & select.fields_of(selection):
        return None
    used = [named[field] for field in (*way, "disposition")]
    values = tuple([_held(part.field, str(part.value)) for part in used])
    # Errors are looked for by their class; one that is named with its module is still to be compared as a whole.
    whole = [str(part.value) for part in used if part.field == "error" and "." in str(part.value)]
    return Walk(
        tuple([_COLUMNS[part.field] for part in used]),
        values,
        And(tuple([part for part in parts if not any(part is one for one in used)])),
        (*[Compiled("l.error = %b", (shown(error),)) for error in whole], *([_ROUTED] if "route" in way else [])),
    )


def _is_name(part: Match) -> bool:
    if part.op != "=" or part.field not in _COLUMNS or not isinstance(part.value, str):
        return False
    if part.field == "route" and not part.value:
        return False
    return storable((_held(part.field, part.value),)) != []


def _held(field: str, value: str) -> str:
    """As the column holds it."""
    match field:
        case "error":
            return indexed(short(value))
        case "cause" | "category" | "route":
            return indexed(value)
        case _:
            return value
