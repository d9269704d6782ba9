"""Dedupe keys on SQLite: held by a live item, or by one that is done while its window lasts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redrive.core import codec
from redrive.core.item import Instant, Terms
from redrive.core.terms import dedupe_place
from redrive.stores.sqlite.tied import Tied
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "dedupe")

Place = tuple[str, str]
"""(scope, key)"""


def holders(tx: Tx, places: Iterable[Place]) -> dict[Place, str]:
    """The ids of those who hold them."""
    meant = list(places)
    if not meant:
        return {}
    rows = tx.execute(_SQL["holders"], (codec.encode(meant).decode(),)).fetchall()
    return {(scope, key): item_id for scope, key, item_id, until in rows if until is None or until > tx.now}


def take(tx: Tx, rows: Sequence[tuple[str, str, int, str]]) -> None:
    """(scope, key, number, id) of items that hold their key from now on."""
    if rows:
        tx.executemany(_SQL["take"], rows)


def take_free(tx: Tx, item: Tied) -> None:
    """Its key, if nobody else has it: one that goes back in spite of its twin runs without."""
    place = dedupe_place(item.queue, item.terms)
    if place is not None and not holders(tx, [place]):
        take(tx, [(*place, item.seq, item.id)])


def release(tx: Tx, over: Iterable[tuple[Tied, str]]) -> None:
    """They have ended, each with its state. One that ran without its key has none to give back."""
    given_back: list[tuple[object, ...]] = []
    kept: list[tuple[object, ...]] = []
    for item, state in over:
        terms = item.terms
        place = dedupe_place(item.queue, terms)
        if place is None:
            continue
        until = _until(item, terms) if state == "done" else None
        if until is not None and until > tx.now:
            kept.append((until, *place, item.seq))
        else:
            given_back.append((*place, item.seq))
    for name, rows in (("release", given_back), ("until", kept)):
        if rows:
            tx.executemany(_SQL[name], rows)


def _until(item: Tied, terms: Terms) -> Instant | None:
    if terms.dedupe is None or terms.dedupe.window is None:
        return None
    return item.enqueued_at + terms.dedupe.window


def forget(tx: Tx) -> None:
    """Those whose window is over."""
    tx.execute(_SQL["forget"], (tx.now,))
