"""Selection of replayed items for a recall: those of a filter, or all items of one replay request."""

from __future__ import annotations

from shlex import quote

from msgspec import Struct

from redrive.core import codec
from redrive.core.filters import parse as parse_filter
from redrive.core.select import And, Match, Selection, ids_of
from redrive.engine.replays import ACTIVE, ENDED
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.stores.audit import TOPIC
from redrive.stores.base import PAGE_LIMIT, Store


class _Record(Struct):
    """The fields of an audit entry that are used here."""

    change: str = ""
    changed: tuple[str, ...] = ()


def replayed(filter: str) -> Selection:
    """The waiting replayed items that match. With ids in the filter also others: a recall names why it skips them."""
    if not filter.strip():
        hint = "for every replayed item that waits, use replays>0"
        raise ConfigError("filter must not be empty", field="filter", hint=hint)
    meant = parse_filter(filter)
    waits = And((Match("state", "=", "ready"), Match("replays", ">", 0), meant))
    return waits if ids_of(meant) is None else meant


async def replayed_by(store: Store, request_id: str) -> tuple[str, ...]:
    """The items that a replay with this request id changed, from the whole audit.

    Raises Conflict for a replay in the background: it would go on sending.
    """
    if await store.document(ACTIVE, request_id) or await store.document(ENDED, request_id):
        hint = f"use redrive replay undo {quote(request_id)}, or app.replays.undo"
        raise Conflict(f"{request_id!r} is a replay in the background", hint=hint)
    changed: dict[str, None] = {}
    after = 0
    while entries := await store.journal(TOPIC, after, PAGE_LIMIT):
        after = entries[-1].position
        records = [codec.decode(one.body, _Record) for one in entries if one.request_id == request_id]
        for record in records:
            if record.change == "replay":
                changed |= dict.fromkeys(record.changed)
    if not changed:
        hint = "redrive audit list shows request ids"
        raise NotFound(f"no replay has the request id {request_id!r}", hint=hint)
    return tuple(changed)
