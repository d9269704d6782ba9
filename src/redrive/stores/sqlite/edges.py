"""Dependencies on SQLite: an edge leads from an awaited item to one that waits, until the awaited one is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redrive.core import codec, terms
from redrive.core.item import Failure
from redrive.core.terms import AWAITED, DEDUPED, ORDERED, WAITS
from redrive.stores.sqlite import keys, lines, tied
from redrive.stores.sqlite.rows import short
from redrive.stores.sqlite.tied import AFTER, ORDER, Tied
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "after")
_TERMS = load("sqlite", "terms")
_SETTLE = load("sqlite", "settle")

LOST = ("dead", "cancelled")


def fate(tx: Tx, item_id: str) -> str | None:
    """The state of an item; None if there never was one. What was pruned is done, or as good as cancelled."""
    row = tx.execute(_SQL["state"], (item_id,)).fetchone()
    if row is not None:
        return str(row[0])
    stone = tx.execute(_SQL["buried"], (item_id,)).fetchone()
    return None if stone is None else "done" if stone[0] == "done" else "cancelled"


def add(tx: Tx, seq: int, awaited: Sequence[str], *, die: bool) -> None:
    tx.executemany(_SQL["add"], [(one, seq, die) for one in awaited])
    tx.executemany(_TERMS["tie"], [(AWAITED, one) for one in awaited])


def give_up(tx: Tx, items: Iterable[Tied]) -> None:
    """They wait for nobody any more."""
    waiting = [(item.seq,) for item in items if item.has(WAITS)]
    if waiting:
        tx.executemany(_SQL["give_up"], waiting)


def fulfil(tx: Tx, items: Sequence[Tied]) -> list[int]:
    """They are done: the numbers of those who waited for them, of whom some may wait for others."""
    if not items:
        return []
    found = tx.execute(_SQL["waiting"], (tied.numbers([item.seq for item in items]),)).fetchall()
    tx.executemany(_SQL["fulfil"], [(item.id,) for item in items])
    return [seq for (seq,) in found]


def doom(tx: Tx, seqs: Iterable[int]) -> list[tuple[Tied, str]]:
    """These die because of what they wait for, and whoever was to die with them, and so on."""
    dead: list[tuple[Tied, str]] = []
    todo = list(dict.fromkeys(seqs))
    gone: set[int] = set()
    while todo:
        items = tied.read(tx, [seq for seq in todo if seq not in gone])
        gone.update(todo)
        _die(tx, items)
        dead += [(item, "dead") for item in items]
        todo = dying_with(tx, items)
    return dead


def dying_with(tx: Tx, items: Iterable[Tied]) -> list[int]:
    found = [seq for item in items if item.has(AWAITED) for (seq,) in tx.execute(_SQL["doomed"], (item.id,)).fetchall()]
    return list(dict.fromkeys(found))


def _die(tx: Tx, items: list[Tied]) -> None:
    give_up(tx, items)
    for item in items:
        tx.moved(item.queue, tied.kind_of(tx, item), "open")
        tx.count_cause(terms.DEPENDENCY_FAILURE.cause, item.queue, 1)
    keys.release(tx, [(item, "dead") for item in items if item.has(DEDUPED)])
    die(tx, [(item.seq, item.queue) for item in items], terms.DEPENDENCY, terms.DEPENDENCY_FAILURE)


def die(tx: Tx, ready: Sequence[tuple[int, str]], reason: str, failure: Failure) -> None:
    """Ready items, by number and queue, become letters; the counters and what is bound to them are the caller's."""
    names = (failure.cause, failure.type, short(failure.type), failure.category, failure.rule)
    body = codec.encode(failure)
    tx.executemany(_SQL["die"], [(tx.now, seq) for seq, _ in ready])
    letters = [(seq, queue, reason, tx.now, *names, body, "") for seq, queue in ready]
    tx.executemany(_SETTLE["insert_letter"], letters)
    tx.change_letters([seq for seq, _ in ready])


def free(tx: Tx, seqs: Sequence[int]) -> None:
    """One that each of them waited for is done."""
    alone = [seq for (seq,) in tx.execute(_SQL["free"], (tied.numbers(seqs),)).fetchall()] if seqs else []
    holds: list[tuple[int, int]] = []
    for item in tied.read(tx, alone) if alone else ():
        if item.hold != AFTER:
            continue
        if item.has(ORDERED) and not lines.is_head(tx, item):
            holds.append((ORDER, item.seq))
            continue
        holds.append((0, item.seq))
        tx.moved(item.queue, "held", "ready")
        tx.woken.add(item.queue)
    if holds:
        tx.executemany(_TERMS["hold"], holds)


def missing(tx: Tx, seq: int) -> list[tuple[str, int]]:
    """Ids of what it waits for with their numbers; 0 for what was pruned."""
    return [(item_id, found or 0) for item_id, found in tx.execute(_SQL["missing"], (seq,)).fetchall()]
