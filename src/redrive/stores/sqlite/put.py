"""`put` on SQLite. What binds items to others is done in bind.py, for those that are."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from redrive.core.acts import Act
from redrive.core.item import NewItem, Priority
from redrive.core.terms import due
from redrive.core.verbs import PutResult
from redrive.errors import EncryptionKeyMissing
from redrive.stores import audit
from redrive.stores.packing import Packed, checksum, is_sealed
from redrive.stores.reencrypting import Rewrite, record_of
from redrive.stores.sqlite import bind, configure, shelf
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "put")

Numbered = tuple[int, NewItem]


def put(tx: Tx, items: Sequence[NewItem], *, admit: bool = True) -> PutResult:
    """Numbers are taken for all; those of items that were there already stay unused.

    `admit`: only as far as the capacity of their queues goes, which is seen when the counters are written.
    """
    if not items:
        return PutResult()
    (last,) = tx.execute(_SQL["last_seq"]).fetchone()
    numbered = list(enumerate(items, last + 1))
    new_to_us = _unpruned(tx, numbered)
    if any(new.terms is not None or new.priority is not Priority.NORMAL for _, new in new_to_us):
        added, duplicates = bind.put(tx, new_to_us, admit=admit)
    else:
        added, duplicates = _put_plain(tx, new_to_us, last, admit=admit), []
    _add(tx, added, last + len(items))
    if len(added) == len(items):
        return PutResult(tuple([new.id for new in items]))
    taken = {seq for seq, _ in added}
    _check_sealed(tx, [new for seq, new in numbered if seq not in taken])
    twins = {one.id for one in duplicates}
    already = tuple([new.id for seq, new in numbered if seq not in taken and new.id not in twins])
    return PutResult(tuple([new.id for _, new in added]), already, tuple(duplicates))


def _check_sealed(tx: Tx, items: Sequence[NewItem]) -> None:
    """As for what is added, which is seen when the counters are written: whether an id is taken makes no difference."""
    for queue in {new.queue for new in items if not is_sealed(new.payload)}:
        if configure.settings(tx, queue).encrypt:
            raise EncryptionKeyMissing(queue)


def _unpruned(tx: Tx, numbered: list[Numbered]) -> list[Numbered]:
    """A pruned id counts as there: the late repeat of an old put must not run the work again."""
    if tx.execute(_SQL["any_tombstone"]).fetchone() is None:
        return numbered
    pruned = _SQL["pruned"]
    return [(seq, new) for seq, new in numbered if tx.execute(pruned, (new.id,)).fetchone() is None]


def _put_plain(tx: Tx, items: list[Numbered], last: int, *, admit: bool) -> list[Numbered]:
    now = tx.now
    rows = [
        (seq, new.id, new.queue, now, now + new.delay if new.at is None else due(new, now), now, new.kind)
        for seq, new in items
    ]
    if tx.change_many(_SQL["insert_item"], rows) != len(rows):
        there = {seq for (seq,) in tx.execute("select seq from item where seq > ?", (last,))}
        items = [(seq, new) for seq, new in items if seq in there]
    for queue, count in Counter([new.queue for _, new in items]).items():
        tx.declare(queue)
        tx.count(queue, "ready", count)
        tx.woken.add(queue)
        if admit:
            tx.admit(queue, count)
    return items


def _add(tx: Tx, added: list[Numbered], last: int) -> None:
    if not added:
        return
    crc32 = zlib.crc32
    plain = [
        (seq, crc32(new.payload), new.release, new.payload) for seq, new in added if type(new.payload) is not Packed
    ]
    tx.executemany(_SQL["insert_payload"], plain)
    if len(plain) < len(added):
        bodies = [(seq, new.release, new.payload) for seq, new in added]
        packed = [
            (seq, checksum(body), release, body, body.packing)
            for seq, release, body in bodies
            if isinstance(body, Packed)
        ]
        tx.executemany(_SQL["insert_packed"], packed)
    tx.in_clear.update([new.queue for _, new in added if type(new.payload) is not Packed or not is_sealed(new.payload)])
    tx.execute(_SQL["keep_seq"], (last,))
    tx.weight += sum([len(new.payload) for _, new in added])


def rewrite(tx: Tx, rewrites: Sequence[Rewrite], by: Act | None) -> int:
    """Of `reencrypt`: bodies that are still what was read."""
    tx.weight += sum([len(one.new) for one in rewrites])
    done: list[str] = []
    for one in rewrites:
        kept = (one.new, one.new.packing, one.id, bytes(one.old))
        if one.purpose == "result":
            count = tx.change(_SQL["rewrite_result"], kept)
        elif one.revision is None:
            count = tx.change(_SQL["rewrite_payload"], (checksum(one.new), *kept))
        else:
            count = tx.change(_SQL["rewrite_revision"], (checksum(one.new), *kept, one.revision))
        done += [one.id] * count
    if by is not None and done:
        shelf.append(tx, (audit.entry(record_of(done), by),))
    return len(done)
