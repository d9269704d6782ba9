"""Payload edits by operators, in the form in which the door of the queue shows the payload."""

from __future__ import annotations

from redrive.core.acts import Act, Edit
from redrive.core.item import Item
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.errors import ConfigError, Conflict, NotFound
from redrive.office.doors import payload_with
from redrive.office.encryption import check_key
from redrive.stores.base import Store


async def edit(
    store: Store, item_id: str, body: bytes, act: Act, *, revision: int | None, raw: bool, most: int
) -> Item:
    """Returns the item after the edit, also if this request edited it before. `body` replaces the part of the payload
    that its door shows; with `raw` the whole payload. An edit to the present payload adds no revision.

    Raises NotFound, EncryptionKeyMissing if this process lacks the key of the present payload, and Conflict if the item
    cannot be edited now.
    """
    history = await store.get(item_id)
    if not raw:
        check_key(store, history.item)
        payload = await payload_with(store, history.item, body)
        if payload != body and revision is None:
            # The door's own fields come from the payload that was read: a later edit must not be lost.
            revision = history.item.revision
        body = payload
    if len(body) > most:
        hint = "keep it elsewhere and put a reference to it into the payload, or raise max_payload"
        raise ConfigError(f"it has {len(body):,} bytes; the limit is {most:,}", field="payload", hint=hint)
    item = history.item
    same = item.payload == body and not item.flaw and revision in (None, item.revision)
    if same and item.state in (State.READY, State.DEAD):
        return item
    amended = await store.amend(Ids((item_id,)), Edit(body, revision), act)
    for skipped in amended.skipped:
        if skipped.code == "missing":
            raise NotFound(f"no item {item_id!r}")
        raise Conflict(f"{item_id} was not edited: {skipped.reason}", hint="check it with redrive item show")
    return (await store.get(item_id)).item
