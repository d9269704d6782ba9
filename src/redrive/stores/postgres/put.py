"""`put` on PostgreSQL: the items as arrays, in one statement.

Not by COPY: the indexes take most of the time, and a COPY has more round trips. Measured once, on a busy machine:
slower up to 500 items at a time, the same at 1,000, a fifth faster at 5,000.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.families import family_of
from redrive.core.item import Millis, NewItem, Priority, Terms
from redrive.core.lanes import NUMBERS
from redrive.core.terms import dedupe_place
from redrive.core.verbs import Duplicate, NewEntry, PutResult
from redrive.errors import ConfigError, EncryptionKeyMissing, QueueFull
from redrive.stores import audit
from redrive.stores.bodies import Bodies
from redrive.stores.checks import hopeless_dependency, taken, unknown_dependency
from redrive.stores.packing import SEALED, Packed, checksum
from redrive.stores.postgres.arrays import bigints, bodies, integers, smallints, texts
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Tx
from redrive.stores.postgres.within import Rows, put_within, there_within
from redrive.stores.reencrypting import Rewrite, record_of

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session


HEAVY = 1_048_576
"""Bytes of payloads that travel by themselves: one statement holds less than 1 GB, and many such would wait for each
other."""


LONGEST_DELAY: Millis = 2**62
"""More than a hundred million years, and yet a due time is a number that can be stored."""


def check_delays(items: Sequence[NewItem]) -> None:
    """Before it travels together with what others put, which must not fail for it."""
    for new in items:
        _check_span("delay", new.delay, new.id)
        _check_span("at", new.at or 0, new.id)
        if new.terms is not None and new.terms.dedupe is not None:
            _check_span("dedupe_window", new.terms.dedupe.window or 0, new.id)


def _check_span(field: str, span: Millis, item_id: str) -> None:
    if span > LONGEST_DELAY:
        raise ConfigError(f"{span} ms cannot be stored (item {item_id})", field=field, hint="wait less long")


def is_heavy(items: Sequence[NewItem]) -> bool:
    return sum([len(new.payload) for new in items]) >= HEAVY


async def put(session: Session, items: Sequence[NewItem]) -> PutResult:
    if not items:
        return PutResult()
    rows = await session.call(session.sql("put", "call"), (session.pinned(), *columns(items)))
    result = _result(items, rows)
    session.wake({new.queue for new in items})
    return result


async def put_audited(session: Session, items: Sequence[NewItem], audit: NewEntry) -> PutResult:
    """With the entry, if an item is added."""

    async def work(tx: Tx) -> PutResult:
        result = _result(items, await tx.execute(session.sql("put", "call"), (tx.now, *columns(items))))
        if result.added:
            await append_acts(session, tx, (audit,), "")
        tx.woken.update([new.queue for new in items])
        return result

    return await session.write(work)


async def put_joined(session: Session, items: Sequence[NewItem], within: object, how: Bodies) -> PutResult:
    """In the caller's transaction, which alone knows when there will be something to wake anybody for."""
    if not items:
        return PutResult()
    result = _result(items, await put_within(within, session.schema, (session.pinned(), *plain_columns(items))))
    await _check_same(session.schema, items, result, within, how)
    return result


async def _check_same(schema: str, items: Sequence[NewItem], result: PutResult, within: object, how: Bodies) -> None:
    """Here, because nobody else sees what the caller's transaction has put before. A repeat is harmless, but other work
    under a used id would be dropped.
    """
    already = set(result.already)
    for new in items:
        if new.id in already and (row := await there_within(within, schema, new.id)) is not None:
            queue, crc, packing, body = row
            # Packed or not is the store's affair: the same work was packed in the same way. Encrypted it never is.
            same = (crc, packing, bytes(body)) == (crc_of(new.payload), packing_of(new.payload), bytes(new.payload))
            if SEALED in (packing, packing_of(new.payload)):
                kept = Packed(bytes(body), packing) if packing else bytes(body)
                same = how.opened(kept, new.id, "payload") == how.opened(new.payload, new.id, "payload")
            if queue != new.queue or not same:
                raise taken(new.id, queue, new.queue)


ALREADY, DUPLICATE, UNKNOWN, FULL, HOPELESS, IN_CLEAR = 0, 1, 2, 3, 4, 5
"""What a row of put.sql says, by its second column."""


def _result(items: Sequence[NewItem], rows: Rows) -> PutResult:
    """From the places (from 1) of those that were not added. Raises if none was."""
    if not rows:
        return PutResult(tuple([new.id for new in items]))
    there: set[int] = set()
    twins: dict[int, str] = {}
    for place, note, other, fill, capacity in rows:
        if note == FULL:
            members = [new.queue for new in items if family_of(new.queue) == other]
            raise QueueFull(other, fill=fill, capacity=capacity, more=place, member=max(members, default=""))
        if note == IN_CLEAR:
            raise EncryptionKeyMissing(other)
        if note == UNKNOWN:
            raise unknown_dependency(items[place - 1].id, other)
        if note == HOPELESS:
            raise hopeless_dependency(items[place - 1].id, other)
        if note == DUPLICATE:
            twins[place] = other
        else:
            there.add(place)
    places = list(enumerate(items, 1))
    return PutResult(
        tuple([new.id for place, new in places if place not in there and place not in twins]),
        tuple([new.id for place, new in places if place in there]),
        tuple([Duplicate(new.id, twins[place]) for place, new in places if place in twins]),
    )


Made = Callable[[Sequence[Any]], Any]
"""Of the values of a column, what is sent."""


class _Ways(NamedTuple):
    """How each kind of column is made: in one go for our own connections, as lists for those of others."""

    texts: Made
    bigints: Made
    integers: Made
    smallints: Made
    bodies: Made


_OURS = _Ways(texts, bigints, integers, smallints, bodies)
_PLAIN = _Ways(list, list, list, list, lambda values: [bytes(value) for value in values])


def columns(items: Sequence[NewItem]) -> tuple[Any, ...]:
    """As put.sql takes them."""
    return _columns(items, _OURS)


def plain_columns(items: Sequence[NewItem]) -> tuple[Any, ...]:
    return _columns(items, _PLAIN)


def _columns(items: Sequence[NewItem], ways: _Ways) -> tuple[Any, ...]:
    payloads = [new.payload for new in items]
    bound = [
        (place, new.queue, new.terms) for place, new in enumerate(items, 1) if new.terms and new.terms != _NO_TERMS
    ]
    return (
        ways.texts([new.id for new in items]),
        ways.texts([new.queue for new in items]),
        ways.bigints([new.delay for new in items]),
        ways.bigints([crc_of(body) for body in payloads]),
        ways.smallints([packing_of(body) for body in payloads]),
        ways.bodies(payloads),
        ways.bigints([new.at or 0 for new in items]) if any(new.at for new in items) else None,
        ways.smallints([NUMBERS[new.priority] for new in items])
        if any(new.priority is not Priority.NORMAL for new in items)
        else None,
        *(_bound_columns(bound, ways, ways.integers) if bound else (None,) * BOUND),
        ways.texts([new.kind for new in items]) if any(new.kind for new in items) else None,
        ways.texts([new.release for new in items]) if any(new.release for new in items) else None,
    )


_NO_TERMS = Terms()
BOUND = 10
"""How many columns there are for items with terms."""


Bound = tuple[int, str, Terms]
"""A place, or a number, with the queue and the terms of the item."""


def bound_columns(bound: Sequence[Bound], numbers: Made) -> tuple[Any, ...]:
    """As take_in.sql takes them. `numbers` makes the columns of what the terms belong to."""
    return _bound_columns(bound, _OURS, numbers)


def _bound_columns(bound: Sequence[Bound], ways: _Ways, numbers: Made) -> tuple[Any, ...]:
    keys = [dedupe_place(queue, terms) or ("", "") for _, queue, terms in bound]
    windows = [None if terms.dedupe is None else terms.dedupe.window for _, _, terms in bound]
    after = [(place, awaited) for place, _, terms in bound for awaited in terms.after]
    return (
        numbers([place for place, _, _ in bound]),
        ways.texts([terms.order_key for _, _, terms in bound]),
        ways.texts([terms.limit_key for _, _, terms in bound]),
        ways.texts([scope for scope, _ in keys]),
        ways.texts([key for _, key in keys]),
        ways.bigints([-1 if window is None else window for window in windows]),
        ways.smallints([int(terms.on_dead == "die") for _, _, terms in bound]),
        ways.bodies([codec.encode(terms) for _, _, terms in bound]),
        numbers([place for place, _ in after]),
        ways.texts([awaited for _, awaited in after]),
    )


def crc_of(body: bytes) -> int:
    return checksum(body) if isinstance(body, Packed) else zlib.crc32(body)


def packing_of(body: bytes) -> int:
    return body.packing if isinstance(body, Packed) else 0


async def rewrite(session: Session, rewrites: Sequence[Rewrite], by: Act | None) -> int:
    """Of `reencrypt`: bodies that are still what was read."""

    async def work(tx: Tx) -> int:
        done: list[str] = []
        groups: dict[str, list[Rewrite]] = {}
        for one in rewrites:
            groups.setdefault(one.purpose if one.revision is None else "revision", []).append(one)
        for name, meant in groups.items():
            values = (
                texts([one.id for one in meant]),
                integers([one.revision or 0 for one in meant]),
                bodies([bytes(one.old) for one in meant]),
                bigints([checksum(one.new) for one in meant]),
                smallints([one.new.packing for one in meant]),
                bodies([one.new for one in meant]),
            )
            done += [item_id for (item_id,) in await tx.execute(session.sql("put", f"rewrite_{name}"), values)]
        if by is not None and done:
            await append_acts(session, tx, (audit.entry(record_of(done), by),), "")
        return len(done)

    return await session.write(work)
