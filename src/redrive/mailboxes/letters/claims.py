"""What must happen once, whoever does it and whatever was pruned since: each of it belongs to the first who claims it.

A letter takes the claim for its request before it is replayed to a mailbox, so that other letters of the same request
are told apart; and one that leaves the store claims its way, so that after a crash it is not sent another.

Claims lie together on shelves, of which there are only so many: a document of its own for each claim would leave its
version behind for ever. Whoever puts a claim on a shelf takes away those of which nobody has asked for long. Nobody may
come to a shelf again, and so whoever replays many looks at some others as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct, structs

from redrive.core import codec
from redrive.core.item import Instant, Millis
from redrive.core.verbs import DocumentWrite
from redrive.errors import Conflict
from redrive.stores.base import Store

KIND = "mailbox.replays"
DIGITS = 4
"""Of a claim's name, for its shelf: with a million claims a shelf still has no more than some twenty."""
DAY: Millis = 24 * 60 * 60 * 1000
KEPT = 90 * DAY
SOME = 64
"""Shelves that a sweep looks at: with one each minute, nearly all of them within a few days."""


class Claim(Struct, frozen=True, array_like=True):
    """`at`: when somebody asked for it last, or up to a day before that. `by`: who claimed it for its owner last, and
    `since` when.
    """

    owner: str
    at: Instant
    by: str
    since: Instant = 0


_Shelf = dict[str, Claim]


def name_of(*parts: object) -> str:
    """The same name for the same parts, for ever, and no other parts have it."""
    told = "".join([f"{len(str(part))}:{part}" for part in parts])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


async def claim(store: Store, wanted: Mapping[str, str], now: Instant, by: str) -> dict[str, str]:
    """By name, who has the claim: the owner that is wanted, unless another was before. `by` is one who asks, once."""
    while True:
        writes, owners = list[DocumentWrite](), dict[str, str]()
        shelves = _by_shelf(wanted)
        read = await asyncio.gather(*[_read(store, shelf) for shelf in shelves])
        for (shelf, those), (version, claims) in zip(shelves.items(), read, strict=True):
            after = _taken(claims, those, now, by)
            owners |= {name: after[name].owner for name in those}
            if after != claims:
                writes.append(DocumentWrite(KIND, shelf, codec.encode(after), version))
        try:
            if writes:
                await store.write_documents(writes)
        except Conflict:
            # Somebody was at one of the shelves. One by one, so that whoever wants many is not kept from all for ever.
            if len(wanted) > 1:
                parts = [await claim(store, {name: owner}, now, by) for name, owner in wanted.items()]
                return {name: owner for part in parts for name, owner in part.items()}
        else:
            return owners


async def claimed(store: Store, name: str) -> str | None:
    """Who has it, if anybody."""
    known = await found(store, name)
    return None if known is None else known.owner


async def found(store: Store, name: str) -> Claim | None:
    _, claims = await _read(store, name[:DIGITS])
    return claims.get(name)


async def take_over(store: Store, name: str, seen: Claim, new: Claim) -> str:
    """Who has it then: the new owner, unless it is not any more as it was seen."""
    while True:
        version, claims = await _read(store, name[:DIGITS])
        known = claims.get(name)
        if known is not None and known != seen:
            return known.owner
        claims[name] = new
        try:
            await store.write_documents([DocumentWrite(KIND, name[:DIGITS], codec.encode(claims), version)])
        except Conflict:
            continue
        return new.owner


async def sweep(store: Store, now: Instant) -> None:
    """Take away what is over, on some of the shelves."""
    some = {f"{random.randrange(16**DIGITS):0{DIGITS}x}" for _ in range(SOME)}  # noqa: S311 - any will do
    await asyncio.gather(*[_swept(store, shelf, now) for shelf in some])


async def _swept(store: Store, shelf: str, now: Instant) -> None:
    version, claims = await _read(store, shelf)
    after = _lasting(claims, now)
    if after != claims:
        try:
            await store.write_documents([DocumentWrite(KIND, shelf, codec.encode(after), version)])
        except Conflict:
            return  # whoever is there sees to it


async def withdraw(store: Store, name: str, by: str) -> None:
    """It came to nothing: whoever comes next may claim it. Unless somebody has claimed it for its owner since."""
    while True:
        version, claims = await _read(store, name[:DIGITS])
        if name not in claims or claims.pop(name).by != by:
            return
        try:
            await store.write_documents([DocumentWrite(KIND, name[:DIGITS], codec.encode(claims), version)])
        except Conflict:
            continue
        return


def _by_shelf(wanted: Mapping[str, str]) -> dict[str, dict[str, str]]:
    shelves: dict[str, dict[str, str]] = defaultdict(dict)
    for name, owner in wanted.items():
        shelves[name[:DIGITS]][name] = owner
    return shelves


async def _read(store: Store, shelf: str) -> tuple[int, _Shelf]:
    document = await store.document(KIND, shelf)
    return (0, {}) if document is None else (document.version, codec.decode(document.body, _Shelf))


def _taken(claims: _Shelf, wanted: Mapping[str, str], now: Instant, by: str) -> _Shelf:
    """The shelf with what is wanted, and without what is over. A claim that is asked for again goes on to hold."""
    after = _lasting(claims, now)
    for name, owner in wanted.items():
        known = after.get(name)
        if known is None or (known.owner == owner and known.by != by):
            after[name] = Claim(owner, now, by, now)
        elif now - known.at > DAY:
            after[name] = structs.replace(known, at=now)
    return after


def _lasting(claims: _Shelf, now: Instant) -> _Shelf:
    return {name: kept for name, kept in claims.items() if now - kept.at < KEPT}
