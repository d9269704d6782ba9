"""`put` of items with terms or a priority: places in lines, dedupe keys, and who they wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from redrive.core import codec, terms
from redrive.core.item import NewItem, Terms
from redrive.core.lanes import NUMBERS
from redrive.core.verbs import Duplicate
from redrive.stores.checks import hopeless_dependency, unknown_dependency
from redrive.stores.sqlite import bonds, edges, keys
from redrive.stores.sqlite.lines import Joining
from redrive.stores.sqlite.tied import AFTER, NOTED, ORDER
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "put")
_TERMS = load("sqlite", "terms")

Numbered = tuple[int, NewItem]
_NOTHING = Terms()


class _Wait(NamedTuple):
    """What a new item waits for; whether it dies with one of them, and whether it does so at once."""

    missing: tuple[str, ...]
    dies: bool
    doomed: bool


def put(tx: Tx, numbered: Sequence[Numbered], *, admit: bool) -> tuple[list[Numbered], list[Duplicate]]:
    """Those that are added, and those whose dedupe key is held."""
    added, duplicates = _accepted(tx, numbered)
    waits = _waits(tx, added)
    _insert(tx, added, waits, admit=admit)
    for seq, wait in waits.items():
        edges.add(tx, seq, wait.missing, die=wait.dies)
    bonds.doom(tx, [seq for seq, wait in waits.items() if wait.doomed])
    return added, duplicates


def _terms(new: NewItem) -> Terms:
    return _NOTHING if new.terms is None else new.terms


def _accepted(tx: Tx, numbered: Sequence[Numbered]) -> tuple[list[Numbered], list[Duplicate]]:
    """In their order: an id that is there is left alone before anybody asks for its key."""
    ids = codec.encode([new.id for _, new in numbered]).decode()
    seen = {item_id for (item_id,) in tx.execute(_SQL["there"], (ids,))}
    places = {
        seq: place
        for seq, new in numbered
        if new.terms is not None and (place := terms.dedupe_place(new.queue, new.terms)) is not None
    }
    holders = keys.holders(tx, places.values())
    added: list[Numbered] = []
    duplicates: list[Duplicate] = []
    for seq, new in numbered:
        if new.id in seen:
            continue
        place = places.get(seq)
        if place is not None:
            holder = holders.setdefault(place, new.id)
            if holder != new.id:
                duplicates.append(Duplicate(new.id, holder))
                continue
        seen.add(new.id)
        added.append((seq, new))
    keys.take(tx, [(*places[seq], seq, new.id) for seq, new in added if seq in places])
    return added, duplicates


def _waits(tx: Tx, added: Sequence[Numbered]) -> dict[int, _Wait]:
    """Of those that wait for anybody. What is done counts as fulfilled; what nobody knows is refused."""
    found: dict[int, _Wait] = {}
    waiting = [(seq, new, new.terms) for seq, new in added if new.terms is not None and new.terms.after]
    if not waiting:
        return found
    ours = {new.id for _, new in added}
    for seq, new, what in waiting:
        missing: list[str] = []
        dies = what.on_dead == "die"
        lost = False
        for awaited in dict.fromkeys(what.after):
            state = "ready" if awaited in ours else edges.fate(tx, awaited)
            if state is None:
                raise unknown_dependency(new.id, awaited)
            if state == "cancelled" and not dies:
                raise hopeless_dependency(new.id, awaited)
            if state != "done":
                missing.append(awaited)
                lost = lost or state in edges.LOST
        if missing:
            found[seq] = _Wait(tuple(missing), dies=dies, doomed=dies and lost)
    return found


def _insert(tx: Tx, added: Sequence[Numbered], waits: dict[int, _Wait], *, admit: bool) -> None:
    joining = Joining(tx, [(new.queue, key) for _, new in added if (key := _terms(new).order_key)])
    rows: list[tuple[object, ...]] = []
    notes: list[tuple[object, ...]] = []
    kinds: Counter[tuple[str, Kind]] = Counter()
    now = tx.now
    for seq, new in added:
        what = _terms(new)
        hold, gap, kind = _placed(joining, seq, new, waits=seq in waits)
        noted = what != _NOTHING
        ties = terms.ties(what) | (NOTED if noted else 0)
        level = NUMBERS[new.priority]
        rows.append((seq, new.id, new.queue, now, terms.due(new, now), now, level, hold, ties, new.kind))
        if noted:
            notes.append((seq, codec.encode(what), what.order_key, seq, what.limit_key, gap))
        kinds[new.queue, kind] += 1
    tx.executemany(_SQL["insert_bound"], rows)
    tx.executemany(_TERMS["insert"], notes)
    joining.write()
    for (queue, kind), count in kinds.items():
        tx.declare(queue)
        tx.count(queue, kind, count)
        if kind == "ready":
            tx.woken.add(queue)
        if admit:
            tx.admit(queue, count)


def _placed(joining: Joining, seq: int, new: NewItem, *, waits: bool) -> tuple[int, str, Kind]:
    """Its hold, the gap it is let past, and what it counts as."""
    key = _terms(new).order_key
    if key:
        line = joining.join((new.queue, key), seq, seq)
        if line.head != seq:
            return AFTER if waits else ORDER, "", "parked" if line.status == "parked" else "held"
        return (AFTER, line.gap, "held") if waits else (0, line.gap, "ready")
    return (AFTER, "", "held") if waits else (0, "", "ready")
