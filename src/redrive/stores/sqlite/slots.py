"""Limit keys on SQLite: how many run under each, and who was set aside because they were enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redrive.core import codec
from redrive.core.terms import LIMITED
from redrive.stores.sqlite.tied import LIMIT, Tied
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "limits")

Name = tuple[str, str]
"""(queue, limit key)"""


def running(tx: Tx, queue: str, keys: Iterable[str]) -> dict[str, int]:
    """How many run under each of these keys, where any do."""
    meant = codec.encode(list(dict.fromkeys(keys))).decode()
    return dict(tx.execute(_SQL["running"], (meant, queue)).fetchall())


def enter(tx: Tx, names: Sequence[Name]) -> None:
    if names:
        tx.executemany(_SQL["enter"], names)


def leave(tx: Tx, items: Iterable[Tied]) -> None:
    """They do not run any more. Keys under which nobody does are forgotten by `sweep`."""
    names = [item.slot for item in items if item.has(LIMITED)]
    if names:
        tx.executemany(_SQL["leave"], names)


def set_aside(tx: Tx, queue: str, items: list[tuple[str, int]]) -> None:
    """(key, number) of ready items."""
    if not items:
        return
    tx.executemany(_SQL["hold"], [(seq,) for _, seq in items])
    tx.executemany(_SQL["set_aside"], [(queue, key, seq) for key, seq in items])
    tx.moved(queue, "ready", "held", len(items))


def take_back(tx: Tx, item: Tied) -> None:
    """One that was set aside has ended."""
    if item.hold == LIMIT:
        tx.execute(_SQL["take_back"], (*item.slot, item.seq))


def pass_on(tx: Tx, items: Iterable[Tied]) -> None:
    """Each had a place under its key, or had been promised the next one: the first that was set aside gets it."""
    limited = [item for item in items if item.has(LIMITED) and not item.hold]
    waited_for = {
        queue
        for queue in dict.fromkeys([item.queue for item in limited])
        if tx.execute(_SQL["any_aside"], (queue,)).fetchone() is not None
    }
    for item in limited:
        if item.queue not in waited_for:
            continue
        (first,) = tx.execute(_SQL["first_aside"], item.slot).fetchone()
        if first is not None:
            tx.execute(_SQL["take_back"], (*item.slot, first))
            tx.execute(_SQL["free"], (first,))
            tx.moved(item.queue, "held", "ready")
            tx.woken.add(item.queue)


def free_all(tx: Tx, queue: str) -> None:
    """The limit has changed: all may try again."""
    freed = tx.change(_SQL["free_all"], (queue,))
    tx.execute(_SQL["take_all_back"], (queue,))
    tx.moved(queue, "held", "ready", freed)
