"""Cancelling an item whose handler does not stop: its lease is taken over, and a later result is refused."""

from __future__ import annotations

from redrive.core import outcome as o
from redrive.core.acts import (
    Act,
    Amended,
    Cancel,
)
from redrive.core.item import Millis
from redrive.core.policy import Policy
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.engine.report import takeover_of
from redrive.errors import NotFound
from redrive.stores.base import Store

TAKEOVER: Millis = 30_000
"""Should we die between takeover and settle, the reaper finds a lease that ran out, of an item asked to cancel."""


UNSAID = "somebody asked for it"


async def cancel_reason(store: Store, item_id: str) -> str:
    """Who asked for a running item to be cancelled, and why."""
    try:
        return (await store.get(item_id)).item.cancel or UNSAID
    except NotFound:
        return UNSAID


async def cancel_by_force(store: Store, item_id: str, act: Act) -> Amended:
    """As `amend` with Cancel, and a running item ends now, whatever its handler does. A repeat goes on where it ended.

    The handler is not waited for and may go on for a moment; its result is refused.
    """
    amended = await store.amend(Ids((item_id,)), Cancel(), act)
    if amended.skipped:
        return amended
    item = (await store.get(item_id)).item
    if item.state is State.LEASED:
        taker = f"{act.actor} ({act.request_id})"
        taken = await store.reclaim(taker, [item.queue], TAKEOVER, 1, [item_id], force=True)
        if taken:
            outcome = o.Cancelled(f"taken away by {act.actor}: {act.reason}")
            await store.settle([takeover_of(each, outcome, Policy()) for each in taken])
    return amended
