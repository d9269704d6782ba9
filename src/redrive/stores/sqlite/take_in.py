"""`take_in` on SQLite: letters of another store, with all their evidence, in a few statements however many they are."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence

from redrive.core import codec, terms
from redrive.core.acts import Act
from redrive.core.item import History, Item, Letter, Terms, payloads_of
from redrive.core.lanes import NUMBERS
from redrive.core.select import Ids
from redrive.core.states import Disposition
from redrive.core.verbs import PutResult
from redrive.stores import audit
from redrive.stores.imports import prepared
from redrive.stores.packing import Packed, checksum, is_sealed, packed_as
from redrive.stores.sqlite import tags
from redrive.stores.sqlite.amend import KINDS, record_deeds
from redrive.stores.sqlite.rows import short
from redrive.stores.sqlite.tied import NOTED
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "take_in")
_PUT = load("sqlite", "put")
_TERMS = load("sqlite", "terms")
_SETTLE = load("sqlite", "settle")

Numbered = tuple[int, History]


def take_in(tx: Tx, histories: Sequence[History], by: Act) -> PutResult:
    told = prepared(histories, tx.now)
    there = _there(tx, told)
    new = [history for history in told if history.item.id not in there]
    already = tuple([history.item.id for history in told if history.item.id in there])
    if not new:
        return PutResult((), already)
    (last,) = tx.execute(_PUT["last_seq"]).fetchone()
    numbered = list(enumerate(new, last + 1))
    tx.execute(_PUT["keep_seq"], (last + len(new),))
    _insert(tx, numbered)
    tx.change_letters([seq for seq, _ in numbered])
    _count(tx, [history.item for history in new])
    added = tuple([history.item.id for history in new])
    record = audit.AuditRecord(audit.IMPORT, Ids(added), added)
    record_deeds(tx, record, by, [seq for seq, _ in numbered])
    return PutResult(added, already)


def _there(tx: Tx, told: Sequence[History]) -> set[str]:
    """Also those that were: a pruned id stays taken."""
    ids = [history.item.id for history in told]
    found = {item_id for (item_id,) in tx.execute(_PUT["there"], (codec.encode(ids).decode(),))}
    if tx.execute(_PUT["any_tombstone"]).fetchone() is not None:
        found |= {item_id for item_id in ids if tx.execute(_PUT["pruned"], (item_id,)).fetchone() is not None}
    return found


def _letter(item: Item) -> Letter:
    if item.letter is None:
        raise AssertionError("`prepared` has letters only")
    return item.letter


def _insert(tx: Tx, numbered: Sequence[Numbered]) -> None:
    tx.executemany(_SQL["item"], [_item_row(seq, history) for seq, history in numbered])
    tx.executemany(_SQL["letter"], [_letter_row(seq, history.item) for seq, history in numbered])
    attempts = [(seq, one.delivery, codec.encode(one)) for seq, history in numbered for one in history.attempts]
    tx.executemany(_SETTLE["insert_attempt"], attempts)
    # Its number is its place: behind all that there are, as with new items.
    bound = [(seq, history.item.terms) for seq, history in numbered]
    notes = [(seq, codec.encode(it), it.order_key, seq, it.limit_key, "") for seq, it in bound if it is not None]
    tx.executemany(_TERMS["insert"], notes)
    tx.executemany(_SQL["revision"], [row for seq, history in numbered for row in _revision_rows(seq, history)])
    tags.insert(tx, [(tag, seq) for seq, history in numbered for tag in history.item.tags])
    for _, history in numbered:
        if not all(is_sealed(part.payload) for part in payloads_of(history)):
            tx.in_clear.add(history.item.queue)
    _insert_payloads(tx, [(seq, history.item.release, history.item.payload) for seq, history in numbered])


def _insert_payloads(tx: Tx, bodies: Sequence[tuple[int, str, bytes]]) -> None:
    plain = [(seq, zlib.crc32(body), release, body) for seq, release, body in bodies if not isinstance(body, Packed)]
    packed = [
        (seq, checksum(body), release, body, body.packing) for seq, release, body in bodies if isinstance(body, Packed)
    ]
    tx.executemany(_PUT["insert_payload"], plain)
    tx.executemany(_PUT["insert_packed"], packed)
    tx.weight += sum([len(body) for _, _, body in bodies])


def _revision_rows(seq: int, history: History) -> list[tuple[object, ...]]:
    return [
        (seq, one.number, one.at, one.actor, one.reason, one.payload, *packed_as(one.payload))
        for one in history.revisions
    ]


def _item_row(seq: int, history: History) -> tuple[object, ...]:
    item = history.item
    return (
        seq,
        item.id,
        item.queue,
        item.enqueued_at,
        item.due_at,
        item.renewed_at,
        item.deliveries,
        item.attempt,
        item.errors,
        item.crashes,
        item.replays,
        item.last_chance,
        history.omitted,
        item.worker,
        item.leased_at,
        item.ended_at,
        NUMBERS[item.priority],
        _ties(item.terms) | (terms.TAGGED if item.tags else 0),
        item.kind,
    )


def _ties(bound: Terms | None) -> int:
    return 0 if bound is None else terms.ties(bound) | NOTED


def _letter_row(seq: int, item: Item) -> tuple[object, ...]:
    letter = _letter(item)
    failure = letter.failure
    names = (failure.cause, failure.type, short(failure.type), failure.category, failure.rule)
    where = (seq, item.queue, letter.reason, letter.died_at, letter.disposition)
    return (*where, *names, codec.encode(failure), letter.route)


def _count(tx: Tx, items: Sequence[Item]) -> None:
    for (queue, disposition), count in Counter([(item.queue, _letter(item).disposition) for item in items]).items():
        tx.declare(queue)
        tx.count(queue, KINDS[disposition], count)
    for item in items:
        letter = _letter(item)
        if letter.disposition is Disposition.OPEN:
            tx.count_cause(letter.failure.cause, item.queue, 1)
            tx.count_route(letter.route, 1)
