"""Edits of payloads: what an operator writes, in the form that the door of the queue gives it."""

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
    """The item as it is afterwards, also if this request edited it before. `body` is what its door shows of the
    payload; with `raw` all of it. An edit to the payload that is there adds no revision.

    Raises NotFound, EncryptionKeyMissing if this process lacks the key of the payload that is there, and Conflict where
    the item cannot be edited now.
    """
    history = await store.get(item_id)
    if not raw:
        check_key(store, history.item)
        payload = await payload_with(store, history.item, body)
        if payload != body and revision is None:
            # The fields of the door are taken from what was read: another edit since then must not be lost.
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
        raise Conflict(f"{item_id} was not edited: {skipped.reason}", hint="look at it again: redrive item show")
    return (await store.get(item_id)).item
