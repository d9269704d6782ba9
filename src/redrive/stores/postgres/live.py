"""Items that are still to be worked on, by the indexes that have nobody else: ready ones by their holds, leased ones.

They are few among all that there ever were, or many; they lie at the end of it, or far back. What the planner guesses
goes by how many there were when it last looked. So a page is looked for in order first, among WALKED items. Where these
are neither enough for the page nor all there are, the live ones are read and sorted, and nobody else. That costs as
much as there are of them in this state and queue, whatever else there is.

What has no such index is met on the way through all items, in order: done and cancelled ones, and those of a queue, a
worker, an order key or an instant alone. So are live ones by `not`, or where another part of an `or` is not of them.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

from redrive.core import select
from redrive.core.select import And, Match, Or, Selection
from redrive.core.states import State
from redrive.core.terms import HOLDS
from redrive.stores.postgres.compile import Value, holds_of, storable

WALKED = 10_000

_READY = frozenset(range(len(HOLDS)))
_LEASED = len(HOLDS)
_STATES = {State.READY: _READY, State.LEASED: frozenset({_LEASED})}
_LIVE = "select * from {schema}.course c where {which}"


class Source(NamedTuple):
    """A query that gives all rows among which those can be that are looked for, and its values."""

    text: str
    values: tuple[Value, ...] = ()


def live_of(selection: Selection) -> Source | None:
    """None where others than live items may match."""
    where = _where(selection)
    if where is None:
        return None
    queue = _queue(selection)
    named = "" if queue is None else " and c.queue = %b"
    parts = []
    if holds := sorted(where & _READY):
        # In the words of the index, and with what it begins with: no other one has only these.
        parts.append(f"c.state = 'ready' and c.hold in ({', '.join(map(str, holds))})")
    if _LEASED in where:
        parts.append("c.state = 'leased'")
    texts = [_LIVE.replace("{which}", part + named) for part in parts or ["false"]]
    return Source(" union all ".join(texts), () if queue is None else (queue,) * len(texts))


def _where(selection: Selection) -> frozenset[int] | None:
    """Ready with a hold of these numbers, or leased; None where it may be elsewhere, too."""
    match selection:
        case Match("state", "=" | "glob", str(word)):
            return next((where for state, where in _STATES.items() if state == word), None)
        case Match("hold", op, str(word)):
            # Nobody has a hold but who is ready.
            return frozenset(holds_of(op, word))
        case And(parts):
            known = [where for part in parts if (where := _where(part)) is not None]
            return reduce(frozenset.__and__, known) if known else None
        case Or(parts):
            each = [_where(part) for part in parts]
            known = [where for where in each if where is not None]
            return frozenset().union(*known) if known and len(known) == len(each) else None
        case _:
            return None


def _queue(selection: Selection) -> str | None:
    for part in select.conjuncts(selection):
        match part:
            case Match("queue", "=", str(name)) if storable((name,)):
                return name
            case _:
                pass
    return None
