"""Compression and encryption of bodies, outside the transactions of a store, in a thread and only where needed.

The store knows which queues are encrypted: it refuses a write with a plaintext body for one of them
(EncryptionKeyMissing) before anything is stored. The write is then repeated with the body encrypted, and the queue is
cached: a queue that is not encrypted costs nothing, and an encrypted one a refused write now and then.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import partial
from time import monotonic
from typing import Literal, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from redrive.core import select
from redrive.core.acts import Change, Edit
from redrive.core.decide import ToDone
from redrive.core.item import History, Instant, Item, NewItem, Revision, payloads_of
from redrive.core.rendering import render
from redrive.core.select import Selection
from redrive.core.verbs import (
    LetterChange,
    Page,
    QueueSettings,
    Settlement,
    Tally,
)
from redrive.errors import BadFilter, ConfigError, DecryptionFailed, EncryptionKeyMissing, StoreError
from redrive.stores import damage, packing
from redrive.stores.aside import aside
from redrive.stores.key_checks import Documents, record_key
from redrive.stores.keyring import Keyring, Purpose, key_missing
from redrive.stores.packing import SEALED, Packed, is_sealed, key_id_of

T = TypeVar("T")
P = TypeVar("P")

Judged = tuple[Item, StoreError | None]
"""An item, and the error for which its payload must not be used."""


class Usable(NamedTuple):
    """Leased items by usability. `items`: those with a readable payload. `ends`: settlements of the others. `locked`: a
    queue whose items are released because this process does not have their keys.
    """

    items: tuple[Item, ...]
    ends: tuple[Settlement, ...] = ()
    locked: str = ""


KNOWN_FOR = 60.0
"""Seconds for which a queue is cached as encrypted; after that a plaintext write finds out again."""
MISSING_FOR = 300.0
"""Seconds for which a key counts as missing after a lease of an item with it; such an item returns within a minute."""

_log = logging.getLogger("redrive.stores")

Way = Literal["whole", "sealed", "raw"]
_way: ContextVar[Way] = ContextVar("redrive_way_of_reading", default="whole")


async def as_stored(reading: Awaitable[T], way: Way = "sealed") -> T:
    """The result of `reading` with encrypted payloads left encrypted, also those that could be decrypted.

    `raw`: all bodies as the store keeps them, for the store itself.
    """
    token = _way.set(way)
    try:
        return await reading
    finally:
        _way.reset(token)


class Editable(Documents, Protocol):
    async def find(self, selection: Selection, limit: int = 100, cursor: str | None = None) -> Page: ...


class Bodies:
    """The codec of one store. `above`: larger bodies are compressed; `keyring`: None without encryption keys."""

    def __init__(self, above: int, keyring: Keyring | None = None) -> None:
        self.above = above
        self.keyring = keyring
        self._encrypted: dict[str, float] = {}
        self._missing: dict[str, tuple[str, float]] = {}
        self._recorded: Keyring | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return () if self.keyring is None else self.keyring.ids

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """As in StoreInfo."""
        now = monotonic()
        missing = [(queue, key) for key, (queue, until) in self._missing.items() if until > now]
        return tuple([f"{queue} {key}" for queue, key in missing if key not in self.keys])

    def _note_missing(self, queue: str, key: str) -> None:
        if key not in self._missing:
            _log.warning("items of %s need encryption key %r, which this process does not have", queue, key)
        self._missing[key] = (queue, monotonic() + MISSING_FOR)

    # --- which queues are encrypted ---

    def know(self, queue: str, *, encrypt: bool) -> None:
        if encrypt and self.keyring is not None:
            self._encrypted[queue] = monotonic() + KNOWN_FOR
        else:
            self._encrypted.pop(queue, None)

    def learn(self, queue: str, settings: QueueSettings) -> QueueSettings:
        if settings.encrypt or self._encrypted:
            self.know(queue, encrypt=settings.encrypt)
        return settings

    def _encrypts(self, queue: str) -> bool:
        """Whether this queue is encrypted; for "" whether any is."""
        if not queue:
            return bool(self._encrypted)
        until = self._encrypted.get(queue)
        if until is None or until > monotonic():
            return until is not None
        self.know(queue, encrypt=False)
        return False

    async def record_key(self, store: Documents) -> None:
        """Record the key once, before it first encrypts. Raises ConfigError if the store has another one by its id."""
        ring = self.keyring
        if ring is not None and self._recorded is not ring:
            await record_key(store, ring)
            self._recorded = ring

    async def write(self, store: Documents, pack: Callable[[], Awaitable[P]], write: Callable[[P], Awaitable[T]]) -> T:
        """Packs and writes, and repeats both if the store refused a plaintext body."""
        while True:
            if self._encrypted:
                await self.record_key(store)
            try:
                return await write(await pack())
            except EncryptionKeyMissing as refused:
                if self.keyring is None or self._encrypts(refused.queue):
                    raise
                self.know(refused.queue, encrypt=True)

    # --- into the store ---

    async def items(self, items: Sequence[NewItem]) -> Sequence[NewItem]:
        if not self._concerns(items):
            return items
        return await aside(lambda: [self._new(new) for new in items])

    async def settlements(self, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
        if not self._concerns_ends(settlements):
            return settlements
        return await aside(lambda: [self._end(settlement) for settlement in settlements])

    async def edit(
        self, store: Editable, selection: Selection, change: Change, write: Callable[[Change], Awaitable[T]]
    ) -> T:
        """Write any change; the payload of an edit is packed, and encrypted if the store refuses it in plaintext."""
        if not isinstance(change, Edit):
            return await write(change)
        await self._check_editable(store, selection)
        body = change.payload
        if len(body) > self.above:
            body = await aside(lambda: packing.pack(change.payload))
        try:
            return await write(replace(change, payload=body))
        except EncryptionKeyMissing:
            if self.keyring is None:
                raise
        ids = select.ids_of(selection) or ()
        if len(ids) != 1:
            # The ciphertext is bound to one item.
            raise ConfigError(
                "an edit in an encrypted queue needs exactly one item", field="selection", hint="name it by its id"
            )
        await self.record_key(store)
        return await write(replace(change, payload=self.keyring.seal(body, ids[0], "payload")))

    async def _check_editable(self, store: Editable, selection: Selection) -> None:
        """Raises EncryptionKeyMissing for payloads that this process cannot decrypt."""
        cursor: str | None = None
        while True:
            page = await as_stored(store.find(selection, cursor=cursor))
            for item in page:
                if item.sealed and item.sealed not in self.keys:
                    raise EncryptionKeyMissing(item.queue, item.sealed)
            if page.next is None:
                return
            cursor = page.next

    async def histories(self, histories: Sequence[History]) -> Sequence[History]:
        parts = [part for history in histories for part in payloads_of(history)]
        if not self._encrypted and not any(len(part.payload) > self.above or part.sealed for part in parts):
            return histories
        return await aside(lambda: [self._history(history) for history in histories])

    def _concerns(self, items: Sequence[NewItem]) -> bool:
        if packing.any_heavy(items, self.above):
            return True
        return bool(self._encrypted) and any(self._encrypts(new.queue) for new in items)

    def _concerns_ends(self, settlements: Sequence[Settlement]) -> bool:
        above, encrypted = self.above, self._encrypted
        for settlement in settlements:
            decision = settlement.decision
            result = decision.result if decision.__class__ is ToDone else None
            if result is not None and (len(result) > above or (encrypted and self._encrypts(settlement.queue))):
                return True
            if settlement.follow_ups and self._concerns(settlement.follow_ups):
                return True
        return False

    def _new(self, new: NewItem) -> NewItem:
        return replace(new, payload=self._packed(new.payload, new.queue, new.id, "payload"))

    def _end(self, settlement: Settlement) -> Settlement:
        decision = settlement.decision
        if isinstance(decision, ToDone) and decision.result is not None:
            decision = ToDone(self._packed(decision.result, settlement.queue, settlement.id, "result"))
        follow_ups = tuple([self._new(new) for new in settlement.follow_ups])
        return replace(settlement, decision=decision, follow_ups=follow_ups)

    def _history(self, history: History) -> History:
        item = history.item

        def body(part: Item | Revision) -> bytes:
            if part.sealed:
                return Packed(part.payload, SEALED)
            return self._packed(part.payload, item.queue, item.id, "payload")

        attempts = history.attempts
        if self._encrypts(item.queue):  # output is not encrypted, and could contain a secret of the payload
            attempts = tuple([replace(one, output=b"") for one in attempts])
        revisions = tuple([replace(one, payload=body(one)) for one in history.revisions])
        return replace(history, item=replace(item, payload=body(item)), attempts=attempts, revisions=revisions)

    def _packed(self, body: bytes, queue: str, item_id: str, purpose: Purpose) -> bytes:
        packed = packing.pack(body) if len(body) > self.above else body
        if self.keyring is None or not self._encrypts(queue):
            return packed
        return self.keyring.seal(packed, item_id, purpose)

    # --- out of the store ---

    async def usable(self, judged: Sequence[Judged], now: Instant = 0, *, lapsed: bool = False) -> Usable:
        """Sort leased items by usability. Leases that had `lapsed` are ended without the payload, so an item whose key
        this process does not have is returned with its flaw.
        """
        items = [item for item, wrong in judged if wrong is None]
        if packing.any_packed(items):
            opened = await aside(partial(self._all_judged, items))
            judged = [*opened, *[one for one in judged if one[1] is not None]]
        elif len(items) == len(judged):
            return Usable(tuple(items))
        items = []
        ends: list[Settlement] = []
        locked = ""
        for item, wrong in judged:
            if wrong is None:
                items.append(item)
            elif not isinstance(wrong, DecryptionFailed) or wrong.key in self.keys:
                ends.append(damage.laid_aside(item, wrong, item.leased_at or now))
            elif lapsed:
                items.append(flawed(item, wrong))
            else:
                locked, has_keys = item.queue, self.keyring is not None
                if has_keys:
                    self._note_missing(item.queue, wrong.key)
                ends.append(damage.given_back(item, wrong.key, item.leased_at or now, pause=has_keys))
        return Usable(tuple(items), tuple(ends), locked)

    def _all_judged(self, items: Sequence[Item]) -> list[Judged]:
        return [self._judged(item) for item in items]

    def _judged(self, item: Item) -> Judged:
        try:
            return self._opened(item), None
        except StoreError as error:
            return item, error

    async def whole(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        """Items for display: each with its opened payload, or with its flaw."""
        if not packing.any_packed(items) and not packing.any_packed_result(items):
            return items
        way = _way.get()
        if way == "raw":
            return items
        return await aside(lambda: tuple([self.shown(item, as_stored=way == "sealed") for item in items]))

    async def whole_changes(self, changes: Sequence[LetterChange]) -> tuple[LetterChange, ...]:
        found = await self.whole(tuple([one.item for one in changes if one.item is not None]))
        items = {item.id: item for item in found}
        return tuple([replace(one, item=items.get(one.id)) for one in changes])

    async def whole_history(self, history: History) -> History:
        (item,) = await self.whole((history.item,))
        way = _way.get()
        if way == "raw" or not any(isinstance(one.payload, Packed) for one in history.revisions):
            return replace(history, item=item)
        sealed = way == "sealed"
        revisions = await aside(
            lambda: tuple([self._revision(one, item.id, as_stored=sealed) for one in history.revisions])
        )
        return replace(history, item=item, revisions=revisions)

    def _revision(self, revision: Revision, item_id: str, *, as_stored: bool) -> Revision:
        body = revision.payload
        try:
            if as_stored and is_sealed(body):
                raise key_missing(key_id_of(body))
            return replace(revision, payload=self.opened(body, item_id, "payload"))
        except StoreError as error:
            return flawed_revision(revision, error)

    def shown(self, item: Item, *, as_stored: bool = False) -> Item:
        wrong: StoreError | None = None
        payload, result = item.payload, item.result
        try:
            # An unreadable result must not be returned as one; by the flaw `wait` knows that there was a result.
            result = None if result is None else self.opened(result, item.id, "result")
        except StoreError as error:
            result, wrong = None, error
        try:
            if as_stored and is_sealed(payload):
                raise key_missing(key_id_of(payload))
            payload = self.opened(payload, item.id, "payload")
        except StoreError as error:
            wrong = error
        whole = replace(item, payload=payload, result=result)
        return whole if wrong is None else flawed(whole, wrong)

    def _opened(self, item: Item) -> Item:
        result = None if item.result is None else self.opened(item.result, item.id, "result")
        return replace(item, payload=self.opened(item.payload, item.id, "payload"), result=result)

    def opened(self, body: bytes, item_id: str, purpose: Purpose) -> bytes:
        if isinstance(body, Packed) and body.packing == SEALED:
            if self.keyring is None:
                raise key_missing(key_id_of(body))
            body = self.keyring.open(body, item_id, purpose)
        return packing.unpack(body)

    async def check_filter(self, selection: Selection, tally: Callable[[], Awaitable[Tally]]) -> None:
        """Raises BadFilter for a filter that reads payloads of an encrypted queue."""
        if not select.reads_payload(selection):
            return
        for row in (await tally()).queues:
            if row.settings.encrypt and select.may_match_queue(selection, row.queue):
                raise BadFilter(
                    f"payload filters cannot be used on queue {row.queue!r}: it is encrypted",
                    text=render(selection),
                    column=1,
                    hint="filter by other fields, or name a queue that is not encrypted",
                )


def flawed(item: Item, wrong: StoreError) -> Item:
    return replace(item, payload=_left_of(item.payload), flaw=str(wrong), sealed=_key_of(item.payload))


def judged_revision(revision: Revision, wrong: StoreError | None) -> Revision:
    return revision if wrong is None else flawed_revision(revision, wrong)


def flawed_revision(revision: Revision, wrong: StoreError) -> Revision:
    body = revision.payload
    return replace(revision, payload=_left_of(body), flaw=str(wrong), sealed=_key_of(body))


def _key_of(body: bytes) -> str:
    """The key id of an encrypted body with a readable header; else ""."""
    try:
        return key_id_of(body) if is_sealed(body) else ""
    except StoreError:
        return ""


def _left_of(body: object) -> bytes:
    """A damaged body as bytes; in a damaged store it may be a text or a number."""
    if isinstance(body, bytes):
        return bytes(body)
    return b"" if body is None else str(body).encode(errors="surrogateescape")
