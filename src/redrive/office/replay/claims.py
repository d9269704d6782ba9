"""Idempotency claims of replays: each name belongs to the first owner that claims it.

A letter claims its dedupe key before it is replayed, so that other letters with the same key are duplicates. A letter
that leaves its store claims its destination, so that it is not sent to another one after a crash.

Claims are stored in a fixed number of documents, the buckets: a document per claim would leave its version behind
forever. A write to a bucket removes expired claims from it, and `sweep` visits some buckets at random, because a bucket
may never be written again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from redrive.core import codec
from redrive.core.item import Instant, Millis
from redrive.core.verbs import DocumentWrite
from redrive.errors import Conflict
from redrive.stores.base import Store

KIND = "replay.claims"
DIGITS = 4
"""Leading digits of a claim's name that select its bucket: with a million claims a bucket has about twenty."""
DAY: Millis = 24 * 60 * 60 * 1000
KEPT = 90 * DAY
SWEPT = 64
"""Buckets per sweep: with one sweep each minute, nearly all of them within a few days."""
CALLS = 16
"""Calls that a claim names. With more, the oldest become FOREVER."""
FOREVER = ""
"""In place of a call: it never withdraws, so that the claim stays."""


class Claim(Struct, frozen=True, array_like=True):
    """`at`: last use, to within a day. `by`: the call that claimed it for its owner last; `since`: when.

    `others`: the calls that claimed it for its owner before, and have not withdrawn. Each may have sent the owner.
    """

    owner: str
    at: Instant
    by: str
    since: Instant = 0
    others: tuple[str, ...] = ()

    @property
    def calls(self) -> tuple[str, ...]:
        return (self.by, *self.others)


_Bucket = dict[str, Claim]


def name_of(*parts: object) -> str:
    """A digest that is always the same for the same parts, and different for others."""
    text = "".join([f"{len(str(part))}:{part}" for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def claim(store: Store, wanted: Mapping[str, str], now: Instant, by: str) -> dict[str, str]:
    """Claim each name for its wanted owner. Gives the owner of each name; `by` identifies the call."""
    buckets: dict[str, dict[str, str]] = defaultdict(dict)
    for name, owner in wanted.items():
        buckets[name[:DIGITS]][name] = owner
    while True:
        writes, owners = list[DocumentWrite](), dict[str, str]()
        read = await asyncio.gather(*[_read(store, bucket) for bucket in buckets])
        for (bucket, those), (version, claims) in zip(buckets.items(), read, strict=True):
            after = _taken(claims, those, now, by)
            owners |= {name: after[name].owner for name in those}
            if after != claims:
                writes.append(DocumentWrite(KIND, bucket, codec.encode(after), version))
        try:
            if writes:
                await store.write_documents(writes)
        except Conflict:
            # Another call wrote one of the buckets. One by one, so that a call with many names makes progress.
            if len(wanted) > 1:
                parts = [await claim(store, {name: owner}, now, by) for name, owner in wanted.items()]
                return {name: owner for part in parts for name, owner in part.items()}
        else:
            return owners


async def claimed(store: Store, name: str) -> str | None:
    """The owner of the name, if it has one."""
    known = await found(store, name)
    return None if known is None else known.owner


async def found(store: Store, name: str) -> Claim | None:
    _, claims = await _read(store, name[:DIGITS])
    return claims.get(name)


async def take_over(store: Store, name: str, seen: Claim, new: Claim) -> str:
    """Replace the claim that was seen. Gives the owner: the new one, unless the claim has changed since."""
    owner = new.owner

    def replaced(claims: _Bucket) -> _Bucket:
        nonlocal owner
        known = claims.get(name)
        owner = new.owner if known is None or known == seen else known.owner
        return {**claims, name: new} if known is None or known == seen else claims

    await _update(store, name[:DIGITS], replaced)
    return owner


async def withdraw(store: Store, name: str, by: str) -> None:
    """The call did not send the owner. The claim ends with the last of its calls, and another letter can claim it."""

    def without(claims: _Bucket) -> _Bucket:
        known = claims.get(name)
        if known is None or by not in known.calls:
            return claims
        if known.others:
            last, *others = [call for call in known.calls if call != by]
            return {**claims, name: structs.replace(known, by=last, others=tuple(others))}
        return {each: kept for each, kept in claims.items() if each != name}

    await _update(store, name[:DIGITS], without)


async def sweep(store: Store, now: Instant) -> None:
    """Remove expired claims from some of the buckets."""
    some = {f"{random.randrange(16**DIGITS):0{DIGITS}x}" for _ in range(SWEPT)}  # noqa: S311 - any will do
    await asyncio.gather(*[_update(store, bucket, lambda claims: _unexpired(claims, now)) for bucket in some])


async def _update(store: Store, bucket: str, change: Callable[[_Bucket], _Bucket]) -> None:
    while True:
        version, claims = await _read(store, bucket)
        after = change(claims)
        if after == claims:
            return
        try:
            await store.write_documents([DocumentWrite(KIND, bucket, codec.encode(after), version)])
        except Conflict:
            continue
        return


async def _read(store: Store, bucket: str) -> tuple[int, _Bucket]:
    document = await store.document(KIND, bucket)
    return (0, {}) if document is None else (document.version, codec.decode(document.body, _Bucket))


def _taken(claims: _Bucket, wanted: Mapping[str, str], now: Instant, by: str) -> _Bucket:
    """The bucket with the wanted claims and without expired ones. A claim that is used again is extended."""
    after = _unexpired(claims, now)
    for name, owner in wanted.items():
        known = after.get(name)
        if known is None:
            after[name] = Claim(owner, now, by, now)
        elif known.owner == owner and by not in known.calls:
            others = known.calls if len(known.calls) < CALLS else (*known.calls[: CALLS - 2], FOREVER)
            after[name] = Claim(owner, now, by, now, others)
        elif now - known.at > DAY:
            after[name] = structs.replace(known, at=now)
    return after


def _unexpired(claims: _Bucket, now: Instant) -> _Bucket:
    return {name: kept for name, kept in claims.items() if now - kept.at < KEPT}
