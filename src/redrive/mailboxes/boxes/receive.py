"""Receiving, in the loop: the wait for the first message, and the end of messages that are older than their ttl."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.core import outcome as o
from redrive.core.item import Item, Millis
from redrive.engine.evidence import plain_failure
from redrive.mailboxes.boxes.envelope import opened

if TYPE_CHECKING:
    from redrive.blocking.loops.stop import Stop
    from redrive.mailboxes.boxes.mailbox import StoreMailbox
    from redrive.mailboxes.boxes.store import MailboxStore

M = TypeVar("M")

STEP: Millis = 1000
"""The store does not notify of expired leases, nor of letters of other processes: the receiver looks this often."""


async def receive(
    shared: MailboxStore,
    mailbox: StoreMailbox[Any, Any],
    look: Callable[[], Awaitable[list[M]]],
    wait: Millis,
    stop: Stop | None,
) -> list[M]:
    """What the first successful look gives; nothing when `wait` is over, `stop` is set, or the mailbox is closed."""
    end = shared.clock.monotonic() + wait
    shared.tasks.received(mailbox.name)
    found = await look()
    if found or not wait:
        return found
    with (
        shared.listening(mailbox.name) as notified,
        nullcontext() if stop is None else stop.heard_in(asyncio.get_running_loop()) as stopped,
    ):
        # Look again before the first pause: a notification before the event was there is lost.
        while not (mailbox.closed or (stopped is not None and stopped.is_set())):
            notified.clear()
            shared.tasks.received(mailbox.name)
            found = await look()
            rest = end - shared.clock.monotonic()
            if found or rest <= 0:
                return found
            await _pause(shared, mailbox.name, notified, stopped, min(rest, STEP))
    return []


async def _pause(
    shared: MailboxStore, name: str, notified: asyncio.Event, stopped: asyncio.Event | None, duration: Millis
) -> None:
    """Until the store has something, `notified` or `stopped` is set, or the time is over."""
    waits = [asyncio.ensure_future(shared.store.wait((name,), duration)), asyncio.ensure_future(notified.wait())]
    if stopped is not None:
        waits.append(asyncio.ensure_future(stopped.wait()))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    if waits[0].done() and not waits[0].cancelled():
        waits[0].result()


def expired(mailbox: str, default_ttl: Millis, on_expire: str, item: Item) -> o.Outcome | None:
    """How a message ends that is older than its ttl, or the mailbox's; None if it is not, or was received before: then
    the policy of its loop decides when to give it up. The age is by the store's clock, since it was sent or replayed.
    """
    if item.attempt > 1:
        return None
    ttl = default_ttl
    if b'"ttl"' in item.payload:
        own = opened(item.payload).ttl
        ttl = ttl if own is None else own
    age = (item.leased_at or 0) - item.renewed_at
    if not ttl or age < ttl:
        return None
    if on_expire == "cancel":
        return o.Cancelled("expired")
    text = f"it was not received in time: sent {age / 1000:,.0f} s ago, which is more than its time to live"
    failure = plain_failure("redrive.MessageExpired", text, "expired", key=f"expired in {mailbox}")
    return o.Expired(failure, "expired")
