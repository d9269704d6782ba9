"""`put` on SQLite."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from redrive.core.item import NewItem
from redrive.core.verbs import PutResult
from redrive.errors import ConfigError
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "put")


def check_new(items: Sequence[NewItem]) -> None:
    for new in items:
        if not new.id:
            raise ConfigError("must not be empty", field="id")
        if not new.queue:
            raise ConfigError(f"must not be empty (item {new.id})", field="queue")
        if new.delay < 0:
            raise ConfigError(f"must not be negative: {new.delay} ms (item {new.id})", field="delay")


def put(tx: Tx, items: Sequence[NewItem]) -> PutResult:
    """Numbers are taken for all; those of items that were there already stay unused."""
    if not items:
        return PutResult()
    now = tx.now
    (last,) = tx.execute(_SQL["last_seq"]).fetchone()
    fresh, pruned = _without_pruned(tx, items)
    numbered = list(enumerate(fresh, last + 1))
    rows = [(seq, new.id, new.queue, now, now + new.delay, now) for seq, new in numbered]
    added = tx.executemany(_SQL["insert_item"], rows).rowcount
    if added < len(numbered):
        there = {seq for (seq,) in tx.execute("select seq from item where seq > ?", (last,))}
        fresh_ids = {new.id: seq for seq, new in numbered if seq in there}
        already = [new.id for seq, new in numbered if seq not in there]
        numbered = [(seq, new) for seq, new in numbered if seq in there]
        del fresh_ids
    else:
        already = []
    _store(tx, numbered, last + len(rows))
    return PutResult(tuple([new.id for _, new in numbered]), _in_order(items, already, pruned))
