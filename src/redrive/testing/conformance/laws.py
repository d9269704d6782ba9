"""What must hold of any store after each step, told from its answers alone: the model is judged by it as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from redrive.core.graph import cycle
from redrive.core.item import History, Item
from redrive.core.states import State
from redrive.core.terms import dedupe_place, is_parked
from redrive.core.verbs import Tally
from redrive.testing.conformance.kit import PARKED

LIVE = (State.READY, State.LEASED)
IN_FRONT = ("", "limit")
"""Holds that only the head of a line can have."""


def check_bonds(items: Sequence[Item]) -> None:
    _check_lines(items)
    _check_keys(items)
    by_id = {item.id: item for item in items}
    for item in items:
        if item.state is State.LEASED and item.terms is not None:
            awaited = [by_id[one].state for one in item.terms.after if one in by_id]
            assert set(awaited) <= {State.DONE}, "it runs before what it waits for"


def _check_lines(items: Sequence[Item]) -> None:
    lines: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if item.terms is not None and item.terms.order_key:
            lines.setdefault((item.queue, item.terms.order_key), []).append(item)
    for line in lines.values():
        live = [item for item in line if item.state in LIVE]
        heads = [item for item in live if item.hold in IN_FRONT]
        assert len(heads) <= 1, "two heads of one order key"
        if live and not heads and not any(item.hold == "after" or is_parked(item.hold) for item in live):
            assert any(item.state is State.DEAD for item in line), "a line stands still for nothing"


def _check_keys(items: Sequence[Item]) -> None:
    """Only a replay by force lets a twin live beside the holder."""
    places = Counter(
        dedupe_place(item.queue, item.terms)
        for item in items
        if item.state in LIVE and item.terms is not None and item.terms.dedupe is not None and not item.replays
    )
    assert max(places.values(), default=0) <= 1, "two live items of one dedupe key"


def check_limits(before: Mapping[str, Item], items: Iterable[Item], tally: Tally, named: str = "") -> None:
    """What this step leased is within the limits; what ran before they were set may be beyond, and what was `named`."""
    leased = [item for item in items if item.state is State.LEASED]
    given = [item for item in leased if item.id not in before or before[item.id].state is not State.LEASED]
    settings = {row.queue: row.settings for row in tally.queues}
    running = Counter(item.queue for item in leased)
    keys = Counter((item.queue, item.terms.limit_key) for item in leased if item.terms is not None)
    for item in given:
        most, per_key = settings[item.queue].max_running, settings[item.queue].max_per_key
        assert most is None or running[item.queue] <= most or item.id == named, "more than may run"
        if per_key is not None and item.terms is not None and item.terms.limit_key:
            assert keys[item.queue, item.terms.limit_key] <= per_key, "more than may run of one key"


def check_history(history: History) -> None:
    """Whoever waits for others can say for whom."""
    waits = history.item.hold in {"after", "order", PARKED}
    assert bool(history.blocked_by) == waits or is_parked(history.item.hold)
    assert history.item.id not in history.blocked_by


def check_no_ring(blocked_by: Mapping[str, Sequence[str]]) -> None:
    """Of all that waits: whoever follows what keeps an item back comes to something that can run, or be mended."""
    assert cycle(blocked_by) == (), "they wait for each other for ever"
