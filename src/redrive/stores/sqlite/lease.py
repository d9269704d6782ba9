"""`lease` on SQLite: due order, suspects alone, and the same answer to the same nonce."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from redrive.core import codec
from redrive.core.item import Item
from redrive.core.verbs import LeaseRequest, Leases, Want
from redrive.errors import StoreError
from redrive.stores import damage
from redrive.stores.bodies import Judged
from redrive.stores.memo import Memo
from redrive.stores.packing import fault
from redrive.stores.sqlite.rows import CRC, PACKING, Row, judged_item, leased_item
from redrive.stores.sqlite.settle import settle
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "lease")
_GET = load("sqlite", "get")
_BODY, _SEQ, _DUE = 2, 3, 5
"""Places in lease.pick."""
_STATE, _DELIVERIES = 4, 8
"""Places in get.by_seq."""


class _Lane(NamedTuple):
    """One want of an unpaused queue, with the crash counts among its ready items on both sides of its line."""

    want: Want
    plain: tuple[int, ...]
    suspect: tuple[int, ...]


def lease(tx: Tx, memo: Memo, request: LeaseRequest) -> Leases:
    if memo.knows_nothing_was_given(request.worker, request.nonce):
        return Leases()
    row = tx.execute(_SQL["last_nonce"], (request.worker, request.nonce)).fetchone()
    if row is not None:
        return Leases(_given_before(tx, memo, codec.decode(row[0], list[int])))
    leases = Leases() if _holds_a_suspect(tx, request.worker) else _give(tx, memo, request)
    if leases.items:
        given = [number for item in leases.items for number in (item.seq, item.deliveries)]
        tx.execute(_SQL["keep_nonce"], (request.worker, request.nonce, tx.now, codec.encode(given)))
        memo.gave(request.worker)
    else:
        memo.gave_nothing(request.worker, request.nonce)
    return leases


def _given_before(tx: Tx, memo: Memo, given: list[int]) -> tuple[Item, ...]:
    """As far as still held: the same delivery, and nobody took it over."""
    rows = [tx.execute(_GET["by_seq"], (seq,)).fetchone() for seq in given[::2]]
    held = [
        judged_item(row)
        for row, delivery in zip(rows, given[1::2], strict=True)
        if row is not None and row[_STATE] == "leased" and row[_DELIVERIES] == delivery
    ]
    return usable(tx, memo, held)


def _holds_a_suspect(tx: Tx, worker: str) -> bool:
    """Not even a worker's own mistake may put a neighbour beside a suspect."""
    return tx.execute(_SQL["holds_alone"], (worker,)).fetchone() is not None


def _give(tx: Tx, memo: Memo, request: LeaseRequest) -> Leases:
    lanes = [lane for want in request.wants if (lane := _lane(tx, want)) is not None]
    suspect = _first_suspect(tx, lanes)
    if suspect is not None and request.holding <= 0:
        row, want = suspect
        return Leases(tuple(_hand_over(tx, memo, [row], want, request.worker, alone=True)))
    items: list[Item] = []
    for lane in lanes:
        rows = _due(tx, lane.want.queue, lane.plain, lane.want.limit)
        items += _hand_over(tx, memo, rows, lane.want, request.worker, alone=False)
    return Leases(tuple(items), suspects_due=suspect is not None)


def _lane(tx: Tx, want: Want) -> _Lane | None:
    if want.limit <= 0:
        return None
    row = tx.execute(_SQL["queue"], (want.queue, want.queue)).fetchone()
    if row is None or row[0]:
        return None
    line = want.max_crashes - 1
    if row[1] is None:
        return _Lane(want, (0,), ()) if line > 0 else _Lane(want, (), (0,))
    levels = [0, *(level for (level,) in tx.execute(_SQL["levels"], (want.queue, want.queue)))]
    return _Lane(want, tuple(n for n in levels if n < line), tuple(n for n in levels if n >= line))


def _first_suspect(tx: Tx, lanes: list[_Lane]) -> tuple[Row, Want] | None:
    for lane in lanes:
        if lane.suspect:
            rows = _due(tx, lane.want.queue, lane.suspect, 1)
            if rows:
                return rows[0], lane.want
    return None


def _due(tx: Tx, queue: str, levels: tuple[int, ...], limit: int) -> list[Row]:
    """The earliest due of these crash counts; each count is in due order by its index."""
    pick = _SQL["pick"]
    rows: list[Row] = []
    for level in levels:
        rows += tx.execute(pick, (queue, level, tx.now, limit)).fetchall()
    if len(levels) > 1:
        rows.sort(key=lambda row: (row[_DUE], row[_SEQ]))
    return rows[:limit]


def _hand_over(tx: Tx, memo: Memo, rows: list[Row], want: Want, worker: str, *, alone: bool) -> list[Item]:
    """Counted before it is given: a crash between here and the handler is already in the books."""
    if not rows:
        return []
    now, until = tx.now, tx.now + want.ttl
    seqs = codec.encode([row[_SEQ] for row in rows]).decode()
    tx.execute(_SQL["mark"], (worker, now, until, alone, seqs))
    tx.count(want.queue, "ready", -len(rows))
    tx.count(want.queue, "leased", len(rows))
    items: list[Item] = []
    for row in rows:
        item = leased_item(row, worker, now, until, alone)
        body, crc, packing = row[_BODY], row[CRC], row[PACKING]
        # Nearly all are small and sound; whatever else there is to say, `fault` says.
        if packing == 0 and type(body) is bytes and zlib.crc32(body) == crc:
            items.append(item)
        else:
            items += usable(tx, memo, [(item, fault(body, crc, packing))])
    return items


def usable(tx: Tx, memo: Memo, judged: Iterable[Judged]) -> tuple[Item, ...]:
    """Those of the leased items whose payload may be used; the others are laid aside."""
    items: list[Item] = []
    for item, wrong in judged:
        if wrong is None:
            items.append(item)
        else:
            lay_aside(tx, memo, item, wrong)
    return tuple(items)


def lay_aside(tx: Tx, memo: Memo, item: Item, wrong: StoreError) -> None:
    settle(tx, memo, [damage.laid_aside(item, wrong, tx.now)])
