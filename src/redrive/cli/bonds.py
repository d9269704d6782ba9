"""What an item waits for and what binds it to others, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redrive.cli.output import seconds
from redrive.core import durations
from redrive.core.item import BLOCKERS, Dedupe, History, Terms

HOLDS = {
    "after": "after: it waits for others to be done",
    "order": "order: the head of its order key goes first",
    "limit": "limit: as many of its limit key run as may",
    "parked:order": "parked: the head of its order key is dead",
}
SHOWN = 5


def bonds(history: History) -> Iterator[tuple[str, str]]:
    """Name and value of each; nothing for most items."""
    item, terms = history.item, history.item.terms
    if item.hold:
        yield "hold", HOLDS.get(item.hold, item.hold)
    if history.blocked_by:
        yield "blocked", f"by {listed(history.blocked_by)}"
    if item.gap:
        yield "gap", f"it was let past {item.gap}, which is dead"
    if item.cancel:
        yield "cancel", f"asked for by {item.cancel}"
    if terms is not None:
        yield from _terms(terms)


def _terms(terms: Terms) -> Iterator[tuple[str, str]]:
    if terms.order_key:
        yield "order", f"key {terms.order_key}"
    if terms.limit_key:
        yield "limit", f"key {terms.limit_key}"
    if terms.dedupe is not None:
        yield "dedupe", f"key {terms.dedupe.key}{_scope(terms.dedupe)}"
    if terms.after:
        otherwise = ", dies if one of them does" if terms.on_dead == "die" else ""
        yield "after", f"{listed(terms.after)}{otherwise}"
    if terms.policy:
        yield "policy", terms.policy


def listed(ids: tuple[str, ...]) -> str:
    more = len(ids) - SHOWN
    # There are never told more than BLOCKERS: so many may stand for still more.
    rest = "" if more <= 0 else f" and {more:,}{' or' if len(ids) == BLOCKERS else ''} more"
    return f"{', '.join(ids[:SHOWN])}{rest}"


def _scope(dedupe: Dedupe) -> str:
    scope = " in the whole store" if dedupe.scope == "store" else ""
    return scope + ("" if dedupe.window is None else f", for {durations.format(dedupe.window)} from its enqueue")


def bonds_object(history: History) -> dict[str, Any]:
    item = history.item
    terms = item.terms or Terms()
    return {
        "hold": item.hold or None,
        "blocked_by": list(history.blocked_by),
        "gap": item.gap or None,
        "cancel_requested": item.cancel or None,
        "order_key": terms.order_key or None,
        "limit_key": terms.limit_key or None,
        "dedupe_key": terms.dedupe.key if terms.dedupe else None,
        "dedupe_scope": terms.dedupe.scope if terms.dedupe else None,
        "dedupe_window": seconds(terms.dedupe.window) if terms.dedupe else None,
        "after": list(terms.after),
        "on_dead": terms.on_dead if terms.after else None,
        "policy": terms.policy or None,
    }
