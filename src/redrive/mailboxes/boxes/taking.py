"""Receiving, in the loop: leases of the queue, what its lost receivers left, and letters under its name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.core import outcome as o
from redrive.core.item import Item, Millis
from redrive.core.verbs import LeaseRequest, Settlement, Want
from redrive.engine.evidence import plain_failure
from redrive.engine.reaper import crash_failure, lost_attempt
from redrive.engine.report import RECEIVED, decision_on, settlement_of
from redrive.engine.store_retry import retry_unknown
from redrive.events import Leased
from redrive.mailboxes.boxes.envelope import opened
from redrive.mailboxes.boxes.ids import fresh_id

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import StoreMailbox
    from redrive.mailboxes.boxes.message import StoreMessage
    from redrive.mailboxes.boxes.stop import Stop

T = TypeVar("T")
R = TypeVar("R")

STEP: Millis = 1000
"""Expired leases and letters of other processes ring no bell: so often they are looked for."""
RESCUE: Millis = 5_000
"""For how long what was lost is ours, until it is ready again in the very next write."""
RECLAIM_LIMIT = 100


async def take(
    mailbox: StoreMailbox[T, R], limit: int, ttl: Millis, wait: Millis, stop: Stop | None
) -> list[StoreMessage[T, R]]:
    """As soon as there is something, what there is; nothing when the time is over, or somebody says stop."""
    await mailbox._prepare()
    place, clock = mailbox._place, mailbox.clock
    end = clock.monotonic() + wait
    place.upkeep.glance(mailbox.name)
    messages = await _look(mailbox, limit, ttl)
    if messages or not wait:
        return messages
    with (
        place.bell(mailbox.name) as bell,
        nullcontext() if stop is None else stop.heard_in(asyncio.get_running_loop()) as told,
    ):
        # Once more before the first pause: whoever rang until now was not heard.
        while not (mailbox.closed or (told is not None and told.is_set())):
            bell.clear()
            place.upkeep.glance(mailbox.name)
            messages = await _look(mailbox, limit, ttl)
            rest = end - clock.monotonic()
            if messages or rest <= 0:
                return messages
            await _pause(mailbox, bell, told, min(rest, STEP))
    return []


async def _look(mailbox: StoreMailbox[T, R], limit: int, ttl: Millis) -> list[StoreMessage[T, R]]:
    while True:
        taken_at = mailbox.clock.monotonic()
        items = await mailbox._fetching(ttl)(limit)
        fresh = [item for item in items if not _is_stale(mailbox, item)]
        if len(fresh) < len(items):
            await _expire(mailbox, [item for item in items if item not in fresh])
        if fresh and not ttl:
            await _give_back(mailbox, fresh)
        if fresh or not items:
            break
    if not fresh:
        return await mailbox._letters(limit, ttl)
    return [mailbox._message(item, taken_at=taken_at, ttl=ttl) for item in fresh]


async def fetch(mailbox: StoreMailbox[Any, Any], limits: Sequence[int], ttl: Millis) -> list[Sequence[Item]]:
    """Items for several receivers who asked at the same time, the first of them first."""
    store, room = mailbox._place.store, sum(limits)
    now = mailbox.clock.monotonic()
    request = _request(mailbox, room, ttl)
    leases, _ = await retry_unknown(lambda: store.lease(request))
    items = leases.items
    if items and mailbox._place.events:
        mailbox._place.events.emit(Leased(mailbox._place.worker, tuple(item.id for item in items)))
    if len(items) < room or now >= mailbox._reclaim_at:
        mailbox._reclaim_at = now + STEP
        more = await _bring_back(mailbox, room - len(items), ttl)
        # A lease of next to nothing may have run out meanwhile: then the later delivery is the one that counts.
        items = tuple({item.id: item for item in (*items, *more)}.values())
    starts = [sum(limits[:number]) for number in range(len(limits))]
    return [items[start : start + limit] for start, limit in zip(starts, limits, strict=True)]


def _request(mailbox: StoreMailbox[Any, Any], limit: int, ttl: Millis) -> LeaseRequest:
    # A timeout of nothing is ours until they are given back, in the next write.
    want = Want(mailbox.name, limit, ttl or RESCUE, RECEIVED.max_crashes)
    return LeaseRequest(mailbox._place.worker, (want,), fresh_id())


async def _bring_back(mailbox: StoreMailbox[Any, Any], room: int, ttl: Millis) -> tuple[Item, ...]:
    """What receivers never settled is ready again, and as much of it as there is room for is ours: in one write."""
    place = mailbox._place
    lost, _ = await retry_unknown(lambda: place.store.reclaim(place.worker, (mailbox.name,), RESCUE, RECLAIM_LIMIT))
    if not lost:
        return ()
    settlements = [lost_one(place.worker, item) for item in lost]
    then = _request(mailbox, room, ttl) if room else None
    settled, _ = await retry_unknown(lambda: place.store.settle(settlements, then))
    place.report(lost, settlements, settled.answers)
    return settled.leases.items if settled.leases is not None else ()


def lost_one(worker: str, item: Item) -> Settlement:
    failure = crash_failure(item, None)
    attempt = lost_attempt(item, failure, f"found by {worker}")
    return Settlement(item.id, item.deliveries, decision_on(item, o.LeaseExpired(failure)), attempt)


def _is_stale(mailbox: StoreMailbox[Any, Any], item: Item) -> bool:
    """By the store's own clock: when it was leased, since it was sent or replayed.

    Only what nobody ever received: whoever tries it again has a policy that knows when to give it up.
    """
    if item.attempt > 1:
        return False
    ttl = mailbox.default_ttl
    if b'"ttl"' in item.payload:
        own = opened(item.payload).ttl
        ttl = ttl if own is None else own
    return bool(ttl) and (item.leased_at or 0) - item.renewed_at >= ttl


async def _expire(mailbox: StoreMailbox[Any, Any], items: list[Item]) -> None:
    """Too old to be of use: not given to anybody, and not lost either."""
    place = mailbox._place
    settlements = []
    for item in items:
        age = ((item.leased_at or 0) - item.renewed_at) / 1000
        said = f"it was not received in time: sent {age:,.0f} s ago, which is more than its time to live"
        failure = plain_failure("redrive.MessageExpired", said, "expired", key=f"expired in {mailbox.name}")
        outcome = o.Cancelled("expired") if mailbox.on_expire == "cancel" else o.Expired(failure, "expired")
        settlements.append(settlement_of(item, outcome, worker=place.worker))
    settled, _ = await retry_unknown(lambda: place.store.settle(settlements))
    place.report(items, settlements, settled.answers)


async def _give_back(mailbox: StoreMailbox[Any, Any], items: list[Item]) -> None:
    """A visibility timeout of nothing: they were seen, and are visible again at once."""
    place = mailbox._place
    seen = o.Release("visibility timeout 0", counted=True)
    settlements = [settlement_of(item, seen, worker=place.worker) for item in items]
    settled, _ = await retry_unknown(lambda: place.store.settle(settlements))
    place.report(items, settlements, settled.answers)


async def _pause(
    mailbox: StoreMailbox[Any, Any], bell: asyncio.Event, told: asyncio.Event | None, duration: Millis
) -> None:
    """Until the store has something, somebody of this process says so, or the time is over."""
    store = mailbox._place.store
    waits = [asyncio.ensure_future(store.wait((mailbox.name,), duration)), asyncio.ensure_future(bell.wait())]
    if told is not None:
        waits.append(asyncio.ensure_future(told.wait()))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    if waits[0].done() and not waits[0].cancelled():
        waits[0].result()
