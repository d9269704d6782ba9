"""Puts work into the store and reads how it went."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from redrive.core import codec
from redrive.core.durations import Duration, parse
from redrive.core.families import family_of, is_family
from redrive.core.item import Ending, History, NewItem, short_id
from redrive.core.states import State
from redrive.core.verbs import PutResult
from redrive.engine.asks import Asks, Offer, ready
from redrive.engine.ids import ItemId, new_id, new_ids
from redrive.engine.registry import Registry, is_outbox, unknown_queue, user_queue_name
from redrive.engine.store_retry import retry_unknown
from redrive.engine.waiting import history_at_end
from redrive.errors import (
    KEYS_HINT,
    ConfigError,
    DecryptionFailed,
    ItemFailed,
    NotFound,
    PayloadUndecodable,
    StoreCorrupt,
)
from redrive.events import Enqueued, Events
from redrive.stores.base import Store
from redrive.stores.bodies import as_stored
from redrive.stores.checks import taken
from redrive.stores.clock import Clock
from redrive.stores.packing import is_sealed, key_id_of

ENCODE_CHUNK = 500
ID_LIMIT = 128


class Put(NamedTuple):
    """The ids that a put added, and for each that it did not, because of its dedupe key, who holds that key."""

    added: frozenset[str]
    twins: dict[str, str]


class Client:
    def __init__(
        self, store: Store, registry: Registry, events: Events, clock: Clock, max_payload: int, *, release: str = ""
    ) -> None:
        self._store = store
        self._registry = registry
        self._events = events
        self._clock = clock
        self._max_payload = max_payload
        self._release = release
        self._known: set[str] = set()

    async def enqueue(
        self, queue: str, payload: object, asks: Asks, item_id: str | None, within: object | None
    ) -> ItemId:
        await self.check_queue(queue)
        key = new_id() if item_id is None else check_id(item_id)
        item = self.new_item(key, queue, payload, asks)
        put = await self._put([item], within)
        if key in put.twins:
            return ItemId(put.twins[key], duplicate=True)
        duplicate = key not in put.added
        if duplicate:
            await self._check_same(item)
        return ItemId(key, duplicate=duplicate)

    async def _check_same(self, item: NewItem) -> None:
        """Ids are unique in the whole store: a repeat is harmless, but other work under a used id would be dropped."""
        try:
            history = await self._store.get(item.id)
        except NotFound:
            return  # it was done and pruned, or is only in the caller's transaction
        there = history.item
        # Somebody may have given it to another queue since.
        moved = any(deed.change in ("move", "replay") for deed in history.deeds)
        first = history.revisions[0].payload if history.revisions else there.payload
        if first != item.payload or (there.queue != item.queue and not moved):
            raise taken(item.id, there.queue, item.queue)

    async def enqueue_many(
        self, queue: str, payloads: Iterable[object], asks: Asks, within: object | None
    ) -> list[ItemId]:
        """All or none. Encodes in chunks, so that a long list does not stop the loop."""
        await self.check_queue(queue)
        offer = self._offer(asks)
        values = _several(payloads)
        items: list[NewItem] = []
        for start in range(0, len(values), ENCODE_CHUNK):
            chunk = values[start : start + ENCODE_CHUNK]
            bodies = [codec.dump_payload(value, limit=self._max_payload, queue=queue) for value in chunk]
            made = zip(new_ids(len(chunk)), bodies, chunk, strict=True)
            items += [offer.item(key, queue, body, value, self._release) for key, body, value in made]
            await asyncio.sleep(0)
        twins = (await self._put(items, within)).twins if items else {}
        return [
            ItemId(twins[item.id], duplicate=True) if item.id in twins else ItemId(item.id, duplicate=False)
            for item in items
        ]

    def new_item(self, key: str, queue: str, payload: object, asks: Asks) -> NewItem:
        offer = self._offer(asks)
        body = codec.dump_payload(payload, limit=self._max_payload, queue=queue)
        return offer.item(key, queue, body, payload, self._release)

    def _offer(self, asks: Asks) -> Offer:
        return ready(asks, self._registry.policies)

    async def check_queue(self, queue: str) -> None:
        """A typo must not become work that nobody will ever do."""
        family = family_of(queue)
        if family:
            user_queue_name(queue)
        if not self._known.isdisjoint((queue, family)) or not self._registry.declared.isdisjoint((queue, family)):
            return
        user_queue_name(queue)
        rows = (await self._store.tally(members=False)).queues
        self._known = {row.queue for row in rows if not is_outbox(row.queue)}
        if is_family(queue) and any(family_of(known) == queue for known in self._known):
            return  # not declared yet, but there are queues that it would have as members
        if self._known.isdisjoint((queue, family)):
            fix = f"register a handler for it, or declare it with app.queue({queue!r})"
            raise unknown_queue(queue, self._registry.declared | self._known, fix)

    async def _put(self, items: Sequence[NewItem], within: object | None) -> Put:
        """What became of each. Repeats a put whose outcome is unknown: the ids are ours, it cannot double."""
        if within is not None:
            # Not there until the caller commits: nothing to tell subscribers yet, and nothing to repeat.
            result = await self._store.put(items, within)
            return Put(frozenset(result.added), _twins(result))
        result, first = await self._write(items)
        # After an unknown outcome, what is there already was put there by our own first try.
        added = result.added if first else result.added + result.already
        if self._events:
            self._events.emit(Enqueued(items[0].queue, added))
        return Put(frozenset(added), _twins(result))

    async def _write(self, items: Sequence[NewItem]) -> tuple[PutResult, bool]:
        return await retry_unknown(lambda: self._store.put(items), clock=self._clock)

    async def get(self, item_id: str) -> History:
        return await self._store.get(str(item_id))

    async def wait(self, item_id: str, timeout: Duration | None) -> Any:
        limit = None if timeout is None else parse(timeout, field="timeout")
        history = await history_at_end(str(item_id), self._store, self._events, self._clock, limit)
        if history.item.flaw and history.item.result is None:
            kept = (await as_stored(self._store.get(str(item_id)), "raw")).item.result
            if kept is not None and is_sealed(kept):
                key = key_id_of(kept)
                why = f"the result of item {item_id} is encrypted with key {key!r}, and this process cannot decrypt it"
                raise DecryptionFailed(why, key=key, hint=KEYS_HINT)
        return _result(history)


def _several(payloads: object) -> list[object]:
    """One payload given by mistake would be taken apart: a text into its letters, an object into its keys."""
    if isinstance(payloads, str | bytes | bytearray | Mapping) or not isinstance(payloads, Iterable):
        hint = "give a list of payloads; for one payload use enqueue"
        raise ConfigError(f"a {type(payloads).__name__} is not a list of payloads", field="payloads", hint=hint)
    return list(payloads)


def check_id(item_id: object) -> str:
    if not isinstance(item_id, str) or not 1 <= len(item_id) <= ID_LIMIT or not item_id.isprintable() or " " in item_id:
        hint = f"use 1 to {ID_LIMIT} printable characters without blanks, or leave it out"
        raise ConfigError(f"{item_id!r} is not an item id", field="id", hint=hint)
    return str(item_id)


def _twins(result: PutResult) -> dict[str, str]:
    return {twin.id: twin.of for twin in result.duplicates} if result.duplicates else {}


def _decoded(result: bytes) -> Any:
    """Handlers that return bytes which are no JSON get them back as they are."""
    try:
        return codec.load_payload(result)
    except PayloadUndecodable:
        return result


def _result(history: History) -> Any:
    item = history.item
    if item.state is State.DONE and item.result is None and item.flaw and not item.sealed:
        raise StoreCorrupt(f"item {item.id} is done, but: {item.flaw}")
    if item.state is State.DONE:
        return None if item.result is None else _decoded(item.result)
    if item.letter is not None:
        failure = item.letter.failure
        message = f"item {item.id} is dead ({item.letter.reason}): {failure.type}: {failure.text}"
        hint = f"redrive letters show {short_id(item.id)}"
        raise ItemFailed(message, item_id=item.id, state="dead", reason=item.letter.reason, hint=hint)
    said = [attempt.note for attempt in history.attempts if attempt.ending is Ending.CANCELLED]
    why = f": {said[-1]}" if said and said[-1] else ""
    raise ItemFailed(f"item {item.id} was cancelled{why}", item_id=item.id, state="cancelled", reason="cancelled")
