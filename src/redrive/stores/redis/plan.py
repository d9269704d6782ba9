"""Which indexes a selection can be answered by. They may give more than what matches: Python judges each."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from redrive.core import select
from redrive.core.item import Millis
from redrive.core.select import And, Ids, Match, Not, Or, Selection
from redrive.core.states import Disposition, State

Group = tuple[str, ...]
"""Names of sorted sets that together hold all that can match."""

_ENDED = frozenset({State.DONE, State.CANCELLED})
_HELD_OR_READY = frozenset({State.READY, State.LEASED})


class Plan(NamedTuple):
    """`few`: what to read at once, if it is small; else the smallest of `groups`, in their order."""

    letters: bool
    groups: tuple[Group, ...]
    few: tuple[tuple[str, str], ...]
    evidence: bool

    @property
    def order(self) -> str:
        return "died" if self.letters else "enqueued"


def plan(selection: Selection) -> Plan:
    pinned = pins(selection)
    evidence = _needs_evidence(selection)
    if select.pins_dead(selection):
        return Plan(letters=True, groups=_letters(pinned), few=(), evidence=evidence)
    return Plan(letters=False, groups=_items(pinned), few=_few(pinned), evidence=evidence)


def plan_of_oldest(selection: Selection) -> Plan:
    """In the order of enqueueing. Indexes of letters are in the order of death: they help where they are small."""
    pinned = pins(selection)
    evidence = _needs_evidence(selection)
    if select.pins_dead(selection):
        few = tuple([("key", key) for key in _letters(pinned)[0]])
        return Plan(letters=False, groups=(("items",),), few=few, evidence=evidence)
    return Plan(letters=False, groups=_items(pinned), few=_few(pinned), evidence=evidence)


def _needs_evidence(selection: Selection) -> bool:
    """The record of a letter knows an error by its class, without the module, and no rule."""
    match selection:
        case Match(field, op, value):
            return field == "rule" or (field == "error" and (op != "=" or "." in str(value)))
        case And(parts) | Or(parts):
            return any(_needs_evidence(part) for part in parts)
        case Not(part):
            return _needs_evidence(part)
        case Ids():
            return False
        case _:
            assert_never(selection)


def died_within(selection: Selection) -> tuple[Millis | None, Millis | None]:
    """How long ago at least and at most a letter must have died for anything to match; None: any time."""
    if isinstance(selection, And):
        spans = [died_within(part) for part in selection.parts]
        longest = [least for least, _ in spans if least is not None]
        shortest = [most for _, most in spans if most is not None]
        return max(longest, default=None), min(shortest, default=None)
    if not isinstance(selection, Match) or selection.field != "died" or not isinstance(selection.value, int):
        return None, None
    least = selection.value if selection.op in {">", ">=", "="} else None
    most = selection.value if selection.op in {"<", "<=", "="} else None
    return least, most


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
    queue, cause = pinned.get("queue"), pinned.get("cause")
    ways = []
    if cause is not None:
        ways.append(("c", cause) if queue is None else ("cq", f"{cause}\0{queue}"))
    if "error" in pinned:
        ways.append(("e", pinned["error"].rpartition(".")[2]))
    if pinned.get("route"):
        ways.append(("r", pinned["route"]))
    if "category" in pinned:
        ways.append(("k", pinned["category"]))
    if queue is not None:
        ways.append(("q", queue))
    groups = [tuple([f"letters:{way}:{one}:{value}" for one in lies]) for way, value in ways]
    widest = (f"letters:{pinned['disposition']}",) if "disposition" in pinned else ("letters",)
    return (*groups, widest)


def _items(pinned: dict[str, str]) -> tuple[Group, ...]:
    state = pinned.get("state")
    if state not in _ENDED:
        return (("items",),)
    return ((f"ended:{state}:{pinned.get('queue', '*')}",), ("items",))


def _few(pinned: dict[str, str]) -> tuple[tuple[str, str], ...]:
    state, queue = pinned.get("state"), pinned.get("queue")
    if queue is None or state not in _HELD_OR_READY:
        return ()
    return (("ready", queue),) if state == State.READY else (("key", f"leased:{queue}"),)
