"""Where what is kept disagrees with the items."""

from __future__ import annotations

from collections import Counter

from redrive.core.item import Item
from redrive.core.states import Disposition, State
from redrive.core.terms import is_parked
from redrive.core.verbs import Finding
from redrive.stores.findings import Findings
from redrive.stores.memory._bonds import Bonds
from redrive.stores.memory._limits import Limits
from redrive.stores.memory._lines import Line, name_of
from redrive.stores.memory._table import Table, limit_key

LIVE = (State.READY, State.LEASED)


def findings(table: Table, bonds: Bonds, limits: Limits) -> tuple[Finding, ...]:
    found = Findings()
    _counters(table, found)
    _turns(table, limits, found)
    _lines(table, found)
    _slots(table, found)
    _keys_and_edges(table, bonds, found)
    return found.told()


def _counters(table: Table, found: Findings) -> None:
    counted: dict[str, Counter[str]] = {}
    causes: Counter[tuple[str, str]] = Counter()
    for item in table.items.values():
        counted.setdefault(item.queue, Counter())[table.bucket(item)] += 1
        if (item.state is State.DEAD) != (item.letter is not None):
            found.add("letters", "items that are dead without a letter, or have one although they live", item.id)
        elif item.letter is not None and item.letter.disposition is Disposition.OPEN:
            causes[item.letter.failure.cause, item.queue] += 1
        if item.letter is not None and item.id not in table.changes:
            found.add("changes", "letters without a change number", item.id)
        if item.hold and item.state is not State.READY:
            found.add("holds", "items that have a hold although they are not ready", item.id)
    for name in table.families:
        counted[name] = sum((counted.get(lane.name, Counter()) for lane in table.members(name)), Counter())
    kept = {name: lane.counts for name, lane in (*table.lanes.items(), *table.families.items())}
    found.add_counters(kept, counted)
    found.add_causes(table.cause_counts(), causes)


def _turns(table: Table, limits: Limits, found: Findings) -> None:
    for lane in table.lanes.values():
        family = lane.family
        if family is not None and lane.name not in family.turns and limits.next_change(lane) is not None:
            found.add("families", "members with work that leases of their family do not look at", lane.name)


def _lines(table: Table, found: Findings) -> None:
    standing: set[str] = set()
    for name, line in table.lines.all():
        standing |= {line.head, *line.followers.values()}
        told = f"{name[0]}: {name[1]}"
        if not _head_fits(table.items.get(line.head), line):
            found.add("lines", "order keys whose head is not there, or is not what keeps the others back", told)
        for item_id in line.followers.values():
            item = table.items.get(item_id)
            if item is None or item.state is not State.READY or not _is_held(item):
                found.add("lines", "items that wait under an order key and are not held", item_id)
    for item in table.items.values():
        if item.state in LIVE and name_of(item) is not None and item.id not in standing:
            found.add("lines", "items that live and have no place under their order key", item.id)


def _is_held(item: Item) -> bool:
    return item.hold in {"order", "after"} or is_parked(item.hold)


def _head_fits(head: Item | None, line: Line) -> bool:
    if head is None:
        return not line.head and not line.followers
    return head.state in LIVE if line.status == "flowing" else head.state is State.DEAD


def _slots(table: Table, found: Findings) -> None:
    running = Counter(limit_key(item) for item in table.items.values() if item.state is State.LEASED)
    for key in sorted(running.keys() | table.running.keys()):
        if key[1] and running[key] != table.running[key]:
            found.add("slots", "limit keys that count another number than runs", f"{key[0]}: {key[1]}")


def _keys_and_edges(table: Table, bonds: Bonds, found: Findings) -> None:
    for place, holder in bonds.keys.holders.items():
        item = table.items.get(holder.id)
        if holder.live != (item is not None and item.state in LIVE):
            found.add("dedupe", "dedupe keys that are held by an item which does not live", place[1])
    for item in table.items.values():
        waits = item.id in bonds.edges.missing
        if waits != (item.hold == "after") and not (waits and is_parked(item.hold)):
            found.add("dependencies", "items that wait for others without a hold, or have one for nothing", item.id)
