"""`put` on SQLite."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from redrive.core.item import NewItem
from redrive.core.verbs import PutResult
from redrive.stores.packing import Packed, checksum
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "put")


def put(tx: Tx, items: Sequence[NewItem]) -> PutResult:
    """Numbers are taken for all; those of items that were there already stay unused."""
    if not items:
        return PutResult()
    now = tx.now
    (last,) = tx.execute(_SQL["last_seq"]).fetchone()
    numbered = list(enumerate(items, last + 1))
    new_to_us = _unpruned(tx, numbered)
    rows = [(seq, new.id, new.queue, now, now + new.delay, now) for seq, new in new_to_us]
    added = new_to_us
    if tx.change_many(_SQL["insert_item"], rows) != len(rows):
        there = {seq for (seq,) in tx.execute("select seq from item where seq > ?", (last,))}
        added = [(seq, new) for seq, new in new_to_us if seq in there]
    _add(tx, added, last + len(items))
    if len(added) == len(items):
        return PutResult(tuple([new.id for new in items]))
    taken = {seq for seq, _ in added}
    already = tuple([new.id for seq, new in numbered if seq not in taken])
    return PutResult(tuple([new.id for _, new in added]), already)


def _unpruned(tx: Tx, numbered: list[tuple[int, NewItem]]) -> list[tuple[int, NewItem]]:
    """A pruned id counts as there: the late repeat of an old put must not run the work again."""
    if tx.execute(_SQL["any_tombstone"]).fetchone() is None:
        return numbered
    pruned = _SQL["pruned"]
    return [(seq, new) for seq, new in numbered if tx.execute(pruned, (new.id,)).fetchone() is None]


def _add(tx: Tx, added: list[tuple[int, NewItem]], last: int) -> None:
    if not added:
        return
    crc32 = zlib.crc32
    plain = [(seq, crc32(new.payload), new.payload) for seq, new in added if type(new.payload) is not Packed]
    tx.executemany(_SQL["insert_payload"], plain)
    if len(plain) < len(added):
        bodies = [(seq, new.payload) for seq, new in added]
        packed = [(seq, checksum(body), body, body.packing) for seq, body in bodies if isinstance(body, Packed)]
        tx.executemany(_SQL["insert_packed"], packed)
    tx.execute(_SQL["keep_seq"], (last,))
    tx.weight += sum([len(new.payload) for _, new in added])
    for queue, count in Counter([new.queue for _, new in added]).items():
        tx.declare(queue)
        tx.count(queue, "ready", count)
        tx.woken.add(queue)
