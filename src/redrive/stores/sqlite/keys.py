"""Dedupe keys on SQLite: held by a live item, or by one that is done while its window lasts."""

from __future__ import annotations

from redrive.core.item import Instant, Terms
from redrive.core.terms import dedupe_place
from redrive.stores.sqlite.tied import Tied
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "dedupe")

Place = tuple[str, str]
"""(scope, key)"""


def holder(tx: Tx, place: Place) -> str | None:
    """The id of whoever holds it."""
    row = tx.execute(_SQL["holder"], place).fetchone()
    if row is None:
        return None
    _, item_id, until = row
    return str(item_id) if until is None or until > tx.now else None


def take(tx: Tx, place: Place, seq: int, item_id: str) -> None:
    tx.execute(_SQL["take"], (*place, seq, item_id))


def release(tx: Tx, item: Tied, state: str) -> None:
    """It has ended. One that ran without its key has none to give back."""
    terms = item.terms
    place = dedupe_place(item.queue, terms)
    if place is None:
        return
    until = _until(item, terms) if state == "done" else None
    if until is not None and until > tx.now:
        tx.execute(_SQL["until"], (until, *place, item.seq))
    else:
        tx.execute(_SQL["release"], (*place, item.seq))


def _until(item: Tied, terms: Terms) -> Instant | None:
    if terms.dedupe is None or terms.dedupe.window is None:
        return None
    return item.enqueued_at + terms.dedupe.window


def forget(tx: Tx) -> None:
    """Those whose window is over."""
    tx.execute(_SQL["forget"], (tx.now,))
