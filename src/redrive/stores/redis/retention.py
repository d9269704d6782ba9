"""Retention on Redis: a script looks at the next items, and those whose time is over are pruned like any other."""

from __future__ import annotations

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.select import Ids
from redrive.core.verbs import TRASH_KEPT, Swept
from redrive.stores import audit
from redrive.stores.redis.amend import entry_of, tombstones_of
from redrive.stores.redis.rows import bare_item, tombstone_body
from redrive.stores.redis.session import Session


async def sweep(session: Session, limit: int, by: Act, cursor: int) -> Swept:
    _, looked_at, last, results, *found = await session.run("sweep", [cursor, limit, TRASH_KEPT])
    pruned = await _prune(session, list(zip(found[0::2], found[1::2], strict=True)), by)
    return Swept(pruned, results, last if looked_at == limit else None)


async def _prune(session: Session, found: list[tuple[bytes, bytes]], by: Act) -> int:
    """Whatever somebody else removed meanwhile is not counted."""
    if not found:
        return 0
    items = [bare_item(item_id.decode(), kept) for item_id, kept in found]
    ids = tuple([item.id for item in items])
    args = entry_of(audit.AuditRecord("prune", Ids(ids), ids), by)
    for item, (_, kept), tombstone in zip(items, found, await tombstones_of(session, items, by), strict=True):
        args += [item.id, codec.encode(item.id), kept, tombstone_body(tombstone)]
    _, *removed = await session.run("prune", args)
    return len(removed)
