"""Which indexes a selection can be answered by. They may give more than what matches: Python judges each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, assert_never

from redrive.core import select
from redrive.core.item import Instant, Millis
from redrive.core.select import And, Ids, Match, Not, Or, Path, Selection, Text
from redrive.core.states import Disposition, State

Group = tuple[str, ...]
"""Names of sorted sets that together hold all that can match."""

_ENDED = frozenset({State.DONE, State.CANCELLED})
_HELD_OR_READY = frozenset({State.READY, State.LEASED})


class Plan(NamedTuple):
    """`few`: what to read at once, if it is small; else the smallest of `groups`, in their order.

    `needs`: what candidates are judged by besides their records, as find.lua and rows.lua call it.
    """

    letters: bool
    groups: tuple[Group, ...]
    few: tuple[tuple[str, str], ...]
    needs: str


def plan(selection: Selection) -> Plan:
    pinned = pins(selection)
    if select.pins_dead(selection):
        few = (("key", f"tag:{pinned['tag']}"),) if "tag" in pinned else ()
        return Plan(letters=True, groups=_letters(pinned), few=few, needs=_needs(selection))
    return Plan(letters=False, groups=_items(pinned), few=_few(pinned), needs=_needs(selection))


def plan_of_oldest(selection: Selection) -> Plan:
    """In the order of enqueueing. Indexes of letters are in the order of death: they help where they are small."""
    pinned = pins(selection)
    few = _few(pinned)
    if select.pins_dead(selection):
        few = tuple([("key", key) for key in _letters(pinned)[0]])
    return Plan(letters=False, groups=_items(pinned), few=few, needs=_needs(selection))


def _needs(selection: Selection) -> str:
    return ("f" if _needs_evidence(selection) else "") + ("p" if "hold" in select.fields_of(selection) else "")


def _needs_evidence(selection: Selection) -> bool:
    """The record of a letter knows an error by its class, without the module, and no rule."""
    match selection:
        case Match(field, op, value):
            return field == "rule" or (field == "error" and (op != "=" or "." in str(value)))
        case And(parts) | Or(parts):
            return any(_needs_evidence(part) for part in parts)
        case Not(part):
            return _needs_evidence(part)
        case Ids() | Text() | Path():
            return False
        case _:
            assert_never(selection)


class Window(NamedTuple):
    """When a letter must have died for anything to match: so long ago at least and at most, not before and not after
    these instants. None: any time.
    """

    least: Millis | None = None
    most: Millis | None = None
    first: Instant | None = None
    last: Instant | None = None

    def has_bound(self, *, oldest: bool) -> bool:
        """At the end where a search begins."""
        at_least, at_most = (self.most, self.first) if oldest else (self.least, self.last)
        return at_least is not None or at_most is not None

    def begin(self, now: Instant) -> Instant | None:
        """The latest instant of death."""
        latest = [] if self.least is None else [now - self.least]
        return min([*latest, *([] if self.last is None else [self.last])], default=None)

    def end(self, now: Instant) -> Instant | None:
        """The earliest."""
        earliest = [] if self.most is None else [now - self.most]
        return max([*earliest, *([] if self.first is None else [self.first])], default=None)


def died_within(selection: Selection) -> Window:
    if isinstance(selection, And):
        least, most, first, last = zip(Window(), *[died_within(part) for part in selection.parts], strict=True)
        return Window(_max(least), _min(most), _max(first), _min(last))
    if not isinstance(selection, Match) or not isinstance(selection.value, int):
        return Window()
    over = selection.value if selection.op in {">", ">=", "="} else None
    under = selection.value if selection.op in {"<", "<=", "="} else None
    match selection.field:
        case "died":
            return Window(least=over, most=under)
        case "died_at":
            return Window(first=over, last=under)
        case _:
            return Window()


def _max(values: Iterable[int | None]) -> int | None:
    return max([value for value in values if value is not None], default=None)


def _min(values: Iterable[int | None]) -> int | None:
    return min([value for value in values if value is not None], default=None)


def pins(selection: Selection) -> dict[str, str]:
    """Fields that must have one value for anything to match."""
    if isinstance(selection, Match) and selection.op == "=" and isinstance(selection.value, str):
        return {selection.field: selection.value}
    pinned: dict[str, str] = {}
    if isinstance(selection, And):
        for part in selection.parts:
            pinned = pins(part) | pinned
    return pinned


def _letters(pinned: dict[str, str]) -> tuple[Group, ...]:
    """From the narrowest to the widest."""
    lies = [pinned["disposition"]] if "disposition" in pinned else list(Disposition)
    queue = pinned.get("queue")
    error = pinned["error"].rpartition(".")[2] if "error" in pinned else None
    ways = []
    for kind, value in (("c", pinned.get("cause")), ("e", error), ("k", pinned.get("category"))):
        if value is not None and queue is not None:
            ways.append((f"{kind}q", f"{value}\0{queue}"))
        elif value is not None:
            ways.append((kind, value))
    if pinned.get("route"):
        ways.append(("r", pinned["route"]))
    if pinned.get("reserved"):
        ways.append(("v", pinned["reserved"]))
    if queue is not None:
        ways.append(("q", queue))
    groups = [tuple([f"letters:{way}:{one}:{value}" for one in lies]) for way, value in ways]
    widest = (f"letters:{pinned['disposition']}",) if "disposition" in pinned else ("letters",)
    return (*groups, widest)


def _items(pinned: dict[str, str]) -> tuple[Group, ...]:
    state, queue = pinned.get("state"), pinned.get("queue")
    ways: list[Group] = []
    if "tag" in pinned:
        ways.append((f"tag:{pinned['tag']}",))
    if state in _ENDED:
        ways.append((f"*ended:{state}:" if queue is None else f"ended:{state}:{queue}",))
    return (*ways, ("items",))


def _few(pinned: dict[str, str]) -> tuple[tuple[str, str], ...]:
    state, queue = pinned.get("state"), pinned.get("queue")
    if queue is None or state not in _HELD_OR_READY:
        return ()
    return (("ready", queue),) if state == State.READY else (("key", f"leased:{queue}"),)
