"""Before a letter is replayed: that no other of its request was, and that it is not on its way elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from redrive.core.verbs import Skipped
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.place import surely
from redrive.mailboxes.letters import claims
from redrive.mailboxes.letters.plans import Found, Message, Order, Plan, leaves


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
        owner = plan.letter.id if key is None else owners[key]
        if owner == plan.letter.id:
            free.append(plan)
        elif order.dedupe or not isinstance(plan, Message):
            found.twice(plan.letter, owner, plan.target)
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
