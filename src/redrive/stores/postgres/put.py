"""`put` on PostgreSQL: the items as arrays, in one statement.

Not by COPY: the indexes take most of the time, and a COPY has more round trips. Measured once, on a busy machine:
slower up to 500 items at a time, the same at 1,000, a fifth faster at 5,000.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from redrive.core.item import Millis, NewItem
from redrive.core.verbs import PutResult
from redrive.errors import ConfigError
from redrive.stores.checks import taken
from redrive.stores.packing import Packed, checksum
from redrive.stores.postgres.arrays import Array, bigints, bodies, smallints, texts
from redrive.stores.postgres.within import put_within, there_within

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
        if new.delay > LONGEST_DELAY:
            raise ConfigError(f"{new.delay} ms cannot be stored (item {new.id})", field="delay", hint="wait less long")


def is_heavy(items: Sequence[NewItem]) -> bool:
    return sum([len(new.payload) for new in items]) >= HEAVY


async def put(session: Session, items: Sequence[NewItem]) -> PutResult:
    if not items:
        return PutResult()
    rows = await session.call(session.sql("put", "call"), (session.pinned(), *columns(items)))
    session.wake({new.queue for new in items})
    return _result(items, [place for (place,) in rows])


async def put_joined(session: Session, items: Sequence[NewItem], within: object) -> PutResult:
    """In the caller's transaction, which alone knows when there will be something to wake anybody for."""
    if not items:
        return PutResult()
    payloads = [new.payload for new in items]
    values = (
        session.pinned(),
        [new.id for new in items],
        [new.queue for new in items],
        [new.delay for new in items],
        [crc_of(body) for body in payloads],
        [packing_of(body) for body in payloads],
        [bytes(body) for body in payloads],
    )
    result = _result(items, await put_within(within, session.schema, values))
    await _check_same(session.schema, items, result, within)
    return result


async def _check_same(schema: str, items: Sequence[NewItem], result: PutResult, within: object) -> None:
    """Here, because nobody else sees what the caller's transaction has put before. A repeat is harmless, but other work
    under a used id would be dropped.
    """
    already = set(result.already)
    for new in items:
        if new.id in already and (row := await there_within(within, schema, new.id)) is not None:
            queue, crc, packing, body = row
            # Packed or not is the store's affair: the same work was packed in the same way.
            same = (crc, packing, bytes(body)) == (crc_of(new.payload), packing_of(new.payload), bytes(new.payload))
            if queue != new.queue or not same:
                raise taken(new.id, queue, new.queue)


def _result(items: Sequence[NewItem], places: Collection[int]) -> PutResult:
    """From the places (from 1) of those that were there already."""
    if not places:
        return PutResult(tuple([new.id for new in items]))
    there = frozenset(places)
    added = tuple([new.id for place, new in enumerate(items, 1) if place not in there])
    already = tuple([new.id for place, new in enumerate(items, 1) if place in there])
    return PutResult(added, already)


def columns(items: Sequence[NewItem]) -> tuple[Array, ...]:
    """As put.sql takes them."""
    payloads = [new.payload for new in items]
    return (
        texts([new.id for new in items]),
        texts([new.queue for new in items]),
        bigints([new.delay for new in items]),
        bigints([crc_of(body) for body in payloads]),
        smallints([packing_of(body) for body in payloads]),
        bodies(payloads),
    )


def crc_of(body: bytes) -> int:
    return checksum(body) if isinstance(body, Packed) else zlib.crc32(body)


def packing_of(body: bytes) -> int:
    return body.packing if isinstance(body, Packed) else 0
