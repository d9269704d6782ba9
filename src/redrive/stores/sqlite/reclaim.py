"""`reclaim` on SQLite: lapsed leases under a new number. What cannot be read goes to the letters, as in `lease`."""

from __future__ import annotations

from heapq import nsmallest
from typing import NamedTuple

from redrive.core.families import is_family, names_between, served
from redrive.core.item import Item, Millis
from redrive.stores.sqlite.lease import usable
from redrive.stores.sqlite.memo import BoundMemo
from redrive.stores.sqlite.rows import judged_item
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "reclaim")
_GET = load("sqlite", "get")

_EVER = 2**63 - 1


class Reclaim(NamedTuple):
    queues: tuple[str, ...]
    ttl: Millis
    limit: int
    ids: tuple[str, ...] | None
    force: bool


def reclaim(tx: Tx, memo: BoundMemo, ask: Reclaim) -> tuple[Item, ...]:
    chosen = nsmallest(max(0, ask.limit), _reclaimable(tx, ask))
    until = tx.now + ask.ttl
    tx.executemany(_SQL["take"], [(until, seq) for _, seq in chosen])
    taken = [judged_item(tx.execute(_GET["by_seq"], (seq,)).fetchone()) for _, seq in chosen]
    return usable(tx, memo, taken)


def _reclaimable(tx: Tx, ask: Reclaim) -> list[tuple[int, int]]:
    """(lease end, seq) of what may be taken."""
    horizon = _EVER if ask.force else tx.now
    found: list[tuple[int, int]] = []
    if ask.ids is None:
        for queue in ask.queues:
            if is_family(queue):
                found += tx.execute(_SQL["expired_members"], (*names_between(queue), horizon, max(0, ask.limit)))
            else:
                found += tx.execute(_SQL["expired"], (queue, horizon, max(0, ask.limit)))
        return found
    for item_id in ask.ids:
        row = tx.execute(_SQL["one"], (item_id, horizon)).fetchone()
        if row is not None and served(ask.queues, row[2]):
            found.append((row[0], row[1]))
    return found
