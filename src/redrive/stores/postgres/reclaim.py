"""`reclaim` on PostgreSQL: lapsed leases under a new number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.core.item import Millis
from redrive.stores.bodies import Judged
from redrive.stores.postgres.arrays import texts
from redrive.stores.postgres.lease import read
from redrive.stores.postgres.settle import possible

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session


async def reclaim(
    session: Session, queues: Sequence[str], ttl: Millis, limit: int, ids: Sequence[str] | None, *, force: bool
) -> list[Judged]:
    names = texts([possible(queue) for queue in dict.fromkeys(queues)])
    named = None if ids is None else texts([possible(item_id) for item_id in dict.fromkeys(ids)])
    params = (session.pinned(), names, ttl, max(0, limit), named, force)
    judged = read(await session.call(session.sql("reclaim", "call"), params)).judged
    session.memo.remember(item for item, _ in judged)
    return judged
