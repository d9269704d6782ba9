"""The relations of an item: what it waits for, its keys, and its own policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from redrive.core import durations
from redrive.core.item import BLOCKERS, History, Millis, Terms
from redrive.core.terms import is_parked

HOLDS = {
    "after": "after: it waits for others to be done",
    "order": "order: the head of its order key goes first",
    "limit": "limit: as many of its limit key run as may",
    "parked:order": "parked: the head of its order key is dead",
}
SHOWN = 5


class Relations(Struct, frozen=True):
    """None where it has none. `gap`: a dead item that it was let past. `cancel_requested`: by whom, and why."""

    hold: str | None = None
    blocked_by: tuple[str, ...] = ()
    gap: str | None = None
    cancel_requested: str | None = None
    order_key: str | None = None
    limit_key: str | None = None
    dedupe_key: str | None = None
    dedupe_scope: Literal["queue", "store"] | None = None
    dedupe_window: Millis | None = None
    after: tuple[str, ...] = ()
    on_dead: Literal["wait", "die"] | None = None
    policy: str | None = None

    def describe(self) -> Iterator[tuple[str, str]]:
        """Name and value of each, for people; nothing for most items."""
        if self.hold:
            by_hand = f"parked: by an operator, as {self.hold.removeprefix('parked:')}"
            yield "hold", by_hand if is_parked(self.hold) else HOLDS.get(self.hold, self.hold)
        if self.blocked_by:
            yield "blocked", f"by {_listed(self.blocked_by)}"
        if self.gap:
            yield "gap", f"it was let past {self.gap}, which is dead"
        if self.cancel_requested:
            yield "cancel", f"asked for by {self.cancel_requested}"
        yield from self._describe_terms()

    def _describe_terms(self) -> Iterator[tuple[str, str]]:
        if self.order_key:
            yield "order", f"key {self.order_key}"
        if self.limit_key:
            yield "limit", f"key {self.limit_key}"
        if self.dedupe_key is not None:
            scope = " in the whole store" if self.dedupe_scope == "store" else ""
            window = self.dedupe_window
            until = "" if window is None else f", for {durations.format(window)} from its enqueue"
            yield "dedupe", f"key {self.dedupe_key}{scope}{until}"
        if self.after:
            yield "after", f"{_listed(self.after)}{', dies if one of them does' if self.on_dead == 'die' else ''}"
        if self.policy:
            yield "policy", self.policy


def relations(history: History) -> Relations:
    item, terms = history.item, history.item.terms or Terms()
    dedupe = terms.dedupe
    return Relations(
        item.hold or None,
        history.blocked_by,
        item.gap or None,
        item.cancel or None,
        terms.order_key or None,
        terms.limit_key or None,
        dedupe.key if dedupe else None,
        dedupe.scope if dedupe else None,
        dedupe.window if dedupe else None,
        terms.after,
        terms.on_dead if terms.after else None,
        terms.policy or None,
    )


def _listed(ids: tuple[str, ...]) -> str:
    more = len(ids) - SHOWN
    # A history has at most BLOCKERS of them, which may stand for more.
    rest = "" if more <= 0 else f" and {more:,}{' or' if len(ids) == BLOCKERS else ''} more"
    return f"{', '.join(ids[:SHOWN])}{rest}"
