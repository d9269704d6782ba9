"""`lease` and `reclaim` on Redis: what a script gave, as items. What cannot be read goes to the letters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from msgspec import msgpack

from redrive.core.item import Instant, Item, Millis
from redrive.core.lanes import PRIORITIES
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Leases, Settled, Settlement
from redrive.errors import StoreError
from redrive.stores.bodies import Judged, Usable
from redrive.stores.redis import settle
from redrive.stores.redis.rows import TermsFacts, judged_item
from redrive.stores.redis.session import Session
from redrive.stores.redis.texts import packed

_decode = msgpack.Decoder().decode
_PLAIN = b"\0"
_SUSPECTS_DUE, _UNDECLARED, _MORE = 1, 2, 4
_HEADS = (b"\xdc\0\x13", b"\xdc\0\x17", b"\xdc\0\x19")
"""How the record of an item begins that has no priority and is bound to nobody, of one that has or is, and of one that
has a kind or a release."""


def packed_request(request: LeaseRequest) -> bytes:
    wants = [
        (
            want.queue,
            want.limit,
            want.ttl,
            want.max_crashes,
            False if want.retries is None else want.retries,
            want.turn,
            False if want.share is None else want.share,
            False if want.kinds is None else want.kinds,
        )
        for want in request.wants
    ]
    # A worker's name has no NUL.
    key = f"{request.worker}\0{request.lane}" if request.lane else request.worker
    return packed((request.worker, request.nonce, request.holding, wants, key, request.item))


async def lease(session: Session, request: LeaseRequest) -> Leases:
    if session.memo.knows_nothing_was_given(request):
        return Leases()
    while True:
        time, reply = await session.run("lease", [packed_request(request)])
        if reply[0] != _UNDECLARED:
            return await given(session, request, reply, time)
        await session.run("declare_family", [reply[1], 0])


async def settle_then(session: Session, settlements: Sequence[Settlement], then: LeaseRequest | None) -> Settled:
    """One script for both."""
    if then is None:
        answers, _, _ = await settle.settle(session, settlements)
        return Settled(answers)
    if session.memo.knows_nothing_was_given(then):
        answers, _, _ = await settle.settle(session, settlements)
        return Settled(answers, Leases())
    answers, reply, time = await settle.settle(session, settlements, packed_request(then))
    if reply and reply[0] == _UNDECLARED:
        return Settled(answers, await lease(session, then))
    return Settled(answers, await given(session, then, reply, time))


async def given(session: Session, request: LeaseRequest, reply: list[Any], time: Instant) -> Leases:
    """From the reply of leasing.lua."""
    suspects_due, more = bool(reply[0] & _SUSPECTS_DUE), bool(reply[0] & _MORE)
    if len(reply) == 1:
        # An empty answer changes nothing on the server, so its nonce is kept here and costs no write.
        session.memo.gave_nothing(request)
        return Leases(suspects_due=suspects_due, more=more)
    session.memo.gave(request)
    found = await usable(session, reply[1:], time)
    return Leases(found.items, suspects_due, found.locked, more)


async def usable(session: Session, rows: Sequence[Any], time: Instant, *, lapsed: bool = False) -> Usable:
    """Those of the leased whose payload may be used, from id, record and payload of each; the others are laid aside."""
    triples = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
    judged = [_leased(item_id.decode(), kept, body) for item_id, kept, body in triples]
    found = await session.bodies.usable(judged, time, lapsed=lapsed)
    if found.ends:
        # If this fails, their leases lapse, and whoever reclaims them comes by here again.
        with contextlib.suppress(StoreError):
            await settle.settle(session, found.ends)
    return found


def _leased(item_id: str, kept: bytes, body: bytes | None) -> Judged:
    """Nearly all are small and sound; whatever else there is to say, `judged_item` says."""
    if (
        kept[:3] not in _HEADS
        or body is None
        or body[:1] != _PLAIN
        or body[1:5] != crc32(payload := body[5:]).to_bytes(4)
    ):
        return judged_item(item_id, kept, body)
    (seq, queue, _, put_at, due_at, renewed_at, deliveries, attempt, errors, crashes, *others) = _decode(kept)
    (replays, last_chance, alone, worker, leased_at, lease_until, ended_at, _, _, *more) = others
    item = Item(
        item_id,
        queue,
        payload,
        seq,
        State.LEASED,
        put_at,
        due_at,
        renewed_at,
        deliveries,
        attempt,
        errors,
        crashes,
        replays,
        last_chance,
        alone,
        worker,
        leased_at,
        lease_until,
        ended_at or None,
        *(_bound(more) if more else ()),
    )
    return item, None


def _bound(more: list[Any]) -> tuple[Any, ...]:
    """What follows in an Item, from the fields that most records do without."""
    priority, _, _, terms, *named = more
    if not terms:
        return (None, None, "", PRIORITIES[priority], "", "", "", None, (), *named)
    known = TermsFacts(*terms)
    tags = tuple(sorted(known.tags))
    return (None, None, "", PRIORITIES[priority], "", known.gap, known.cancel, known.terms(), tags, *named)


async def reclaim(
    session: Session, queues: Sequence[str], ttl: Millis, limit: int, ids: Sequence[str] | None, *, force: bool
) -> tuple[Item, ...]:
    named = b"" if ids is None else packed(tuple(dict.fromkeys(ids)))
    asked = packed(tuple(dict.fromkeys(queues)))
    time, rows = await session.run("reclaim", [asked, ttl, max(0, limit), named, b"1" if force else b"0"])
    return (await usable(session, rows, time, lapsed=True)).items


async def patience(session: Session, queues: Iterable[str], kinds: Mapping[str, tuple[str, ...]]) -> Millis | None:
    """How long until something of these queues is due; None if nothing will be by itself."""
    time, *when = await session.read("due", [packed([(queue, kinds.get(queue, False)) for queue in queues])])
    return int(when[0] - time) if when else None


async def kinds(session: Session, queue: str) -> tuple[str, ...]:
    return tuple(sorted([kind.decode() for kind in await session.read("kinds", [queue])]))
