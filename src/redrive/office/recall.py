"""Replayed items that are to be letters again: those of a filter, or all that one replay request sent."""

from __future__ import annotations

from shlex import quote

from redrive.core.filters import parse as parse_filter
from redrive.core.select import And, Match, Selection, ids_of
from redrive.engine.replays import ACTIVE, ENDED
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.office.audit import LOOKED_AT, Audit, by_request
from redrive.stores.base import Store


def replayed(filter: str) -> Selection:
    """The replayed items that wait and match. If it names ids, also others: a recall says why it skips them."""
    if not filter.strip():
        hint = "for every replayed item that waits, use replays>0"
        raise ConfigError("filter must not be empty", field="filter", hint=hint)
    meant = parse_filter(filter)
    waits = And((Match("state", "=", "ready"), Match("replays", ">", 0), meant))
    return waits if ids_of(meant) is None else meant


async def replayed_by(store: Store, request_id: str) -> tuple[str, ...]:
    """The items that a replay with this request id changed, as far as the newest audit entries tell.

    Conflict for a replay in the background, which would go on.
    """
    if await store.document(ACTIVE, request_id) or await store.document(ENDED, request_id):
        hint = f"use redrive replay undo {quote(request_id)}, or app.replays.undo"
        raise Conflict(f"{request_id!r} is a replay in the background", hint=hint)
    entries = [entry for entry in await Audit(store).last(LOOKED_AT) if entry.request_id == request_id]
    changed = [one for line in by_request(entries) if line.act == "replay" for one in line.changed]
    if not changed:
        hint = f"redrive audit list shows request ids; the last {LOOKED_AT:,} entries are searched"
        raise NotFound(f"no replay has the request id {request_id!r}", hint=hint)
    return tuple(dict.fromkeys(changed))
