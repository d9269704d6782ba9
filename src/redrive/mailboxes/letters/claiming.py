"""Before a letter is replayed: that no other of its request was, and that it is not on its way elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from redrive.core import durations
from redrive.core.item import Millis, holder
from redrive.core.verbs import Skipped
from redrive.errors import NotFound
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.place import surely
from redrive.mailboxes.letters import claims
from redrive.mailboxes.letters.plans import Found, Message, Order, Plan, leaves
from redrive.mailboxes.letters.resending import Candidate

GRACE: Millis = 60 * 60 * 1000
"""From a claim to the end of all that is done with it there are moments: a bite of letters, and their writes."""


def claimed(order: Order, plans: list[Plan], found: Found) -> list[Plan]:
    """Those that no other letter of the same request was before; without `dedupe` all, under ids of their own."""
    keys = [_claim_of(order, plan) for plan in plans]
    wanted: dict[str, str] = {}
    for plan, key in zip(plans, keys, strict=True):
        if key is not None:
            wanted.setdefault(key, plan.letter.id)
    owners = order.call(claim, order, wanted) if wanted else {}
    free: list[Plan] = []
    for plan, key in zip(plans, keys, strict=True):
        owner, pending = plan.letter.id if key is None else owners[key], ""
        if key is not None and order.dedupe and owner not in (plan.letter.id, wanted[key]):
            owner, pending = order.call(take_over, order, plan, key)
            owners[key] = owner
        if owner == plan.letter.id:
            free.append(plan)
        elif order.dedupe or not isinstance(plan, Message):
            found.twice(plan.letter, owner, plan.target, pending)
        else:
            free.append(as_its_own(plan))
    return free


def _claim_of(order: Order, plan: Plan) -> str | None:
    return plan.letter.claim_on(plan.target.name) if order.dedupe or leaves(order, plan) else None


def withdraw(order: Order, plans: list[Plan], found: Found) -> None:
    """The claims of those that did not go."""
    for plan in plans:
        key = _claim_of(order, plan) if plan.letter.id in found.unsent else None
        if key is not None:
            order.call(give_up, order, key)


def as_its_own(plan: Message) -> Message:
    """Under an id that no other letter of the same request has."""
    own = plan.letter.new_id(plan.target.name, by_request=False)
    return replace(plan, item=structs.replace(plan.item, id=own))


async def claim(order: Order, wanted: dict[str, str]) -> dict[str, str]:
    store, now = order.place.store, order.place.clock.now()
    owners, _ = await surely(lambda: claims.claim(store, wanted, now, order.act.request_id))
    return owners


async def take_over(order: Order, plan: Plan, key: str) -> tuple[str, str]:
    """Who has the claim of another letter of the same request then, and when it may be had if it cannot be had yet.

    Whoever claimed it for a letter that still lies there has died, or was killed, before anything was sent: after GRACE
    it is free for the next. Not before, for that one may just be slow.
    """
    store, now = order.place.store, order.place.clock.now()
    seen = await claims.found(store, key)
    if seen is None:  # whoever had it has just withdrawn it
        return (await claim(order, {key: plan.letter.id}))[key], ""
    if not await _came_to_nothing(order, plan, key, seen.owner):
        return seen.owner, ""
    left = seen.since + GRACE - now
    if left > 0:
        return seen.owner, durations.brief(-(-left // 1000) * 1000)
    new = claims.Claim(plan.letter.id, now, order.act.request_id, now)
    owner, _ = await surely(lambda: claims.take_over(store, key, seen, new))
    return owner, ""


async def _came_to_nothing(order: Order, plan: Plan, key: str, owner: str) -> bool:
    """It is a letter still, nobody has it in hand, it was not replayed since, and has not set out for elsewhere."""
    store = order.place.store
    try:
        history = await store.get(owner)
    except NotFound:
        return False
    if history.item.letter is None or holder(history.item, order.place.clock.now()):
        return False
    letter = Candidate(history, order.dead_letters)
    return letter.claim_on(plan.target.name) == key and await claims.claimed(store, letter.way) is None


async def give_up(order: Order, key: str) -> None:
    await surely(lambda: claims.withdraw(order.place.store, key, order.act.request_id))


def is_on_its_way(order: Order, plan: Plan, found: Found) -> bool:
    """A replay that was begun may have arrived where it was to go: to send it elsewhere now would make two of it."""
    if not order.dedupe or not plan.letter.was_in_hand:
        return False
    begun = order.call(claims.claimed, order.place.store, plan.letter.way)
    return begun is not None and refused(plan, begun, found)


def refused(plan: Plan, begun: str, found: Found) -> bool:
    if begun == whereto(plan.target):
        return False
    hint = "replay it to that one, or with dedupe=False to this one as well"
    found.kept.append(Skipped(plan.letter.id, f"its replay to {begun} was begun, and may have arrived: {hint}"))
    return True


def whereto(target: Mailbox[Any, Any]) -> str:
    """The same in each process. A store in memory has no name that another process would know it by."""
    info = target._place.store.info() if isinstance(target, StoreMailbox) else None
    return target.name if info is None or info.engine == "memory" else f"{target.name} on {info.location}"
