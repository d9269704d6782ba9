"""A store in front of a store: every verb goes through one method, which is where the kit's stores do their tricks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import ParamSpec, Self, TypeVar

from redrive.core.acts import (
    Act,
    Amended,
    Change,
)
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Selection
from redrive.core.verbs import Answer as SettleAnswer
from redrive.core.verbs import (
    Backup,
    CauseTally,
    Checkup,
    Document,
    DocumentWrite,
    Entry,
    Extended,
    Gate,
    GateWrite,
    Held,
    IdPage,
    LeaseRequest,
    Leases,
    LetterChange,
    NewEntry,
    Page,
    PutResult,
    QueueChange,
    QueueSettings,
    Reencrypted,
    Settled,
    Settlement,
    StoreInfo,
    Swept,
    Tally,
    Tombstone,
    WorkerBeat,
    WorkerFacts,
)
from redrive.stores.base import IDS_LIMIT, Store
from redrive.stores.keyring import Keyring

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Relay(ABC):
    """open, close and info are not verbs: they go straight through."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @abstractmethod
    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Called instead of the verb, a bound method of `store` whose `__name__` is the verb's."""

    async def open(self) -> Self:
        await self.store.open()
        return self

    async def close(self) -> None:
        await self.store.close()

    def info(self) -> StoreInfo:
        return self.store.info()

    def use_keys(self, keyring: Keyring | None) -> None:
        self.store.use_keys(keyring)

    def keyring(self) -> Keyring | None:
        return self.store.keyring()

    async def put(
        self, items: Sequence[NewItem], within: object | None = None, *, audit: NewEntry | None = None
    ) -> PutResult:
        if audit is not None:
            return await self.relay(self.store.put, items, within, audit=audit)
        if within is not None:
            return await self.relay(self.store.put, items, within)
        return await self.relay(self.store.put, items)

    async def lease(self, request: LeaseRequest) -> Leases:
        return await self.relay(self.store.lease, request)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        return await self.relay(self.store.settle, settlements, then)

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        return await self.relay(self.store.extend, held, ttl)

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        return await self.relay(self.store.reclaim, worker, queues, ttl, limit, ids, force=force)

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        return await self.relay(self.store.lease_letters, ids, worker, ttl, early=early, reserved=reserved)

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[SettleAnswer, ...]:
        return await self.relay(self.store.settle_letters, settlements)

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        return await self.relay(self.store.amend, selection, change, by, expect)

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        return await self.relay(self.store.take_in, histories, by)

    async def get(self, item_id: str) -> History:
        return await self.relay(self.store.get, item_id)

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        return await self.relay(self.store.find, selection, limit, cursor, oldest=oldest)

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        return await self.relay(self.store.ids, selection, limit, cursor, oldest=oldest)

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        return await self.relay(self.store.tally, members=members)

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        return await self.relay(self.store.causes, queue, limit)

    async def changes(self, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        return await self.relay(self.store.changes, after, limit)

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        return await self.relay(self.store.prune, selection, limit, by)

    async def tombstone(self, item_id: str) -> Tombstone | None:
        return await self.relay(self.store.tombstone, item_id)

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        await self.relay(self.store.configure, queue, change, audit)

    async def configure_route(self, route: str, capacity: int | None, audit: NewEntry | None = None) -> None:
        await self.relay(self.store.configure_route, route, capacity, audit)

    async def settings(self, queue: str) -> QueueSettings:
        return await self.relay(self.store.settings, queue)

    async def set_gate(self, write: GateWrite, audit: NewEntry | None = None) -> Gate:
        return await self.relay(self.store.set_gate, write, audit)

    async def gates(self) -> tuple[Gate, ...]:
        return await self.relay(self.store.gates)

    async def gate(self, name: str) -> Gate | None:
        return await self.relay(self.store.gate, name)

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        return await self.relay(self.store.sweep, limit, by, cursor)

    async def reencrypt(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        queue: str | None = None,
        dry_run: bool = False,
        by: Act | None = None,
    ) -> Reencrypted:
        return await self.relay(self.store.reencrypt, limit, cursor, queue=queue, dry_run=dry_run, by=by)

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        await self.relay(self.store.beat, worker, facts, ttl)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        return await self.relay(self.store.workers)

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        return await self.relay(self.store.elect, name, owner, ttl)

    async def kinds(self, queue: str) -> tuple[str, ...]:
        return await self.relay(self.store.kinds, queue)

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        await self.relay(self.store.wait, queues, timeout, kinds)

    async def document(self, kind: str, key: str) -> Document | None:
        return await self.relay(self.store.document, kind, key)

    async def documents(self, kind: str) -> tuple[Document, ...]:
        return await self.relay(self.store.documents, kind)

    async def write_documents(
        self, writes: Sequence[DocumentWrite], audit: NewEntry | None = None
    ) -> tuple[Document, ...]:
        return await self.relay(self.store.write_documents, writes, audit)

    async def append(self, entries: Sequence[NewEntry]) -> tuple[int, ...]:
        return await self.relay(self.store.append, entries)

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        return await self.relay(self.store.journal, topic, after, limit)

    async def check(self, *, quick: bool = False) -> Checkup:
        return await self.relay(self.store.check, quick=quick)

    async def backup(self, path: str, *, force: bool = False) -> Backup:
        return await self.relay(self.store.backup, path, force=force)
