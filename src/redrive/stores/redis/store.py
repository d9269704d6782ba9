"""The Redis store: the contract of stores.base over one namespace of a Redis 7 or a Valkey.

Each verb is one script (`lua/<verb>.lua`), which the server runs as a whole. What goes in and comes out stands in the
module of its verb.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from redrive.core import durations, sizes
from redrive.core.acts import (
    Act,
    Amended,
    Change,
)
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Selection
from redrive.core.verbs import (
    Answer,
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
from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores import packing, reencrypting
from redrive.stores.aside import through
from redrive.stores.base import IDS_LIMIT
from redrive.stores.bodies import Bodies
from redrive.stores.checks import (
    check_act,
    check_amend,
    check_change,
    check_entries,
    check_follow_ups,
    check_gate,
    check_lease,
    check_letter_settlements,
    check_letters,
    check_new,
    check_not_within,
    check_page,
    check_queues,
    check_route,
    check_text,
    check_writes,
)
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.imports import check_imports
from redrive.stores.keyring import Keyring
from redrive.stores.redis import (
    amend,
    boot,
    checkup,
    find,
    in_place,
    lease,
    limits,
    put,
    retention,
    settle,
    shelf,
    take_in,
)
from redrive.stores.redis import options as said
from redrive.stores.redis.options import Address, Options
from redrive.stores.redis.session import Session
from redrive.stores.redis.upkeep import RedisUpkeep
from redrive.stores.reencrypting import Rewrite


@dataclass
class _Room:
    """What a store has in one loop of one process: connections cannot be used from another."""

    pid: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: Session | None = None


class RedisStore:
    def __init__(
        self,
        host: str = "localhost",
        port: int = said.PORT,
        *,
        path: str = "",
        db: int = 0,
        username: str | None = None,
        password: str | None = None,
        tls: Mapping[str, Any] | None = None,
        namespace: str = said.NAMESPACE,
        clock: Clock | None = None,
        timeout: durations.Duration = said.TIMEOUT,
        connect_timeout: durations.Duration = said.CONNECT_TIMEOUT,
        poll: durations.Duration = said.POLL,
        pool: int = said.POOL,
        compress_above: sizes.Size | None = packing.ABOVE,
    ) -> None:
        self._options = Options(
            Address(host, port, path),
            said.check_db(db),
            username,
            password,
            tls,
            said.check_namespace(namespace),
            said.positive(timeout, field="timeout"),
            said.positive(connect_timeout, field="connect_timeout"),
            said.positive(poll, field="poll"),
            said.check_pool(pool),
            said.threshold(compress_above),
        )
        self._bodies = Bodies(self._options.compress_above)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._rooms: dict[asyncio.AbstractEventLoop, _Room] = {}
        self._info = StoreInfo("redis", self._options.location, "none", "", 0)
        self._open = self._was_open = False

    # --- life ---

    async def open(self) -> Self:
        room = self._room()
        async with room.lock:
            if room.session is None:
                room.session = await self._begin()
            self._open = self._was_open = True
        return self

    async def close(self) -> None:
        self._open = False
        here = self._room()
        others = [room for room in self._rooms.values() if room is not here]
        self._rooms = {asyncio.get_running_loop(): here}
        async with here.lock:
            session, here.session = here.session, None
            if session is not None:
                await through(session.close())
        for room in others:
            if room.session is not None:
                room.session.abandon()

    def _room(self) -> _Room:
        """Of this loop. A forked child starts with none: it does not wait for a task of its parent."""
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None or room.pid != os.getpid():
            room = self._rooms[loop] = _Room(os.getpid())
        return room

    async def _begin(self) -> Session:
        for loop in [loop for loop, room in self._rooms.items() if loop.is_closed() or room.pid != os.getpid()]:
            del self._rooms[loop]
        session = Session(self._options, self._clock, self._bodies)
        try:
            await session.open()
        except BaseException:
            await through(session.close())
            raise
        return session

    def info(self) -> StoreInfo:
        sessions = [room.session for room in self._rooms.values() if room.session is not None]
        if sessions:
            server = sessions[-1].server
            self._info = StoreInfo("redis", self._options.location, server.durability, server.library, boot.SCHEMA)
        return replace(self._info, keys=self._bodies.keys, missing_keys=self._bodies.missing_keys)

    def use_keys(self, keyring: Keyring | None) -> None:
        self._bodies.keyring = keyring

    def keyring(self) -> Keyring | None:
        return self._bodies.keyring

    async def memory(self) -> tuple[int, int]:
        """Bytes that the server uses, and its maxmemory (0: no bound)."""
        return await self.upkeep().memory()

    async def _here(self) -> Session:
        """The session of this loop. A store that was open before a fork goes on in the child with its own."""
        if not self._open:
            raise StoreUnavailable(
                f"the store {self._options.location} is {'closed' if self._was_open else 'not open'}",
                hint="await store.open() first, and use it before close()",
            )
        session = self._room().session
        if session is not None:
            return session
        await self.open()
        return await self._here()

    # --- the way of an item ---

    async def put(
        self, items: Sequence[NewItem], within: object | None = None, *, audit: NewEntry | None = None
    ) -> PutResult:
        check_not_within(within, "Redis")
        check_new(items)
        session = await self._here()
        write: Callable[[Sequence[NewItem]], Awaitable[PutResult]] = session.gather.put
        if audit is not None:
            check_entries((audit,))
            write = partial(put.put, session.run, audit=shelf.args_of(audit))
        return await self._bodies.write(self, lambda: self._bodies.items(items), write)

    async def lease(self, request: LeaseRequest) -> Leases:
        check_lease(request)
        return await lease.lease(await self._here(), request)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            if settlement.follow_ups:
                check_follow_ups(settlement.follow_ups)
        if then is not None:
            check_lease(then)
        session = await self._here()
        return await self._bodies.write(
            self, lambda: self._bodies.settlements(settlements), lambda packed: lease.settle_then(session, packed, then)
        )

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        return await settle.extend(await self._here(), held, ttl)

    async def reclaim(
        self,
        worker: str,  # noqa: ARG002 - the fence is the delivery number; the item goes on naming the worker that lost it
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        return await lease.reclaim(await self._here(), queues, ttl, limit, ids, force=force)

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        check_letters(ids, worker, ttl)
        return await in_place.lease_letters(await self._here(), ids, worker, ttl, early=early, reserved=reserved)

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        check_letter_settlements(settlements)
        session = await self._here()
        return await self._bodies.write(
            self, lambda: self._bodies.settlements(settlements), lambda packed: in_place.settle_letters(session, packed)
        )

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        check_amend(change, by)
        session = await self._here()
        return await self._bodies.edit(
            self, selection, change, lambda packed: amend.amend(session, selection, packed, by, expect)
        )

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        check_act(by)
        check_imports(histories)
        session = await self._here()
        return await self._bodies.write(
            self, lambda: self._bodies.histories(histories), lambda packed: take_in.take_in(session, packed, by)
        )

    # --- looking ---

    async def get(self, item_id: str) -> History:
        return await find.get(await self._here(), item_id)

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        check_page(limit)
        await self._bodies.check_filter(selection, self.tally)
        return await find.find(await self._here(), selection, limit, cursor, oldest=oldest)

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        check_page(limit, IDS_LIMIT)
        await self._bodies.check_filter(selection, self.tally)
        return await find.ids(await self._here(), selection, limit, cursor, oldest=oldest)

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        return await find.tally(await self._here(), members=members)

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        return await find.causes(await self._here(), queue, limit)

    async def changes(self, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        check_page(limit)
        return await find.changes(await self._here(), after, limit)

    # --- keeping house ---

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        check_act(by)
        return await amend.prune(await self._here(), selection, limit, by)

    async def reencrypt(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        queue: str | None = None,
        dry_run: bool = False,
        by: Act | None = None,
    ) -> Reencrypted:
        return await reencrypting.reencrypt(self, self._bodies, limit, cursor, queue, dry_run=dry_run, by=by)

    async def rewrite_bodies(self, rewrites: Sequence[Rewrite], by: Act | None) -> int:
        audit = () if by is None else amend.entry_of(reencrypting.record_of(()), by)
        return await put.rewrite((await self._here()).run, rewrites, audit)

    async def tombstone(self, item_id: str) -> Tombstone | None:
        return await find.tombstone(await self._here(), item_id)

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        check_change(queue, change)
        check_entries((audit,))
        self._bodies.learn(queue, await limits.configure(await self._here(), queue, change, audit))

    async def configure_route(self, route: str, capacity: int | None, audit: NewEntry | None = None) -> None:
        check_route(route, capacity)
        check_entries((audit,))
        await limits.configure_route(await self._here(), route, capacity, audit)

    async def settings(self, queue: str) -> QueueSettings:
        return self._bodies.learn(queue, await limits.settings(await self._here(), queue))

    async def set_gate(self, write: GateWrite, audit: NewEntry | None = None) -> Gate:
        check_gate(write)
        check_entries((audit,))
        return await limits.set_gate(await self._here(), write, audit)

    async def gates(self) -> tuple[Gate, ...]:
        return await limits.gates(await self._here())

    async def gate(self, name: str) -> Gate | None:
        return await limits.gate(await self._here(), name)

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        check_act(by)
        check_page(limit)
        return await retention.sweep(await self._here(), limit, by, cursor)

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        check_text("worker", worker)
        await shelf.beat(await self._here(), worker, facts, ttl)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        return await shelf.workers(await self._here())

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        check_text("name", name)
        check_text("owner", owner)
        return await shelf.elect(await self._here(), name, owner, ttl)

    async def kinds(self, queue: str) -> tuple[str, ...]:
        return await lease.kinds(await self._here(), queue)

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Returns for a signal, for a due time that has come, or when something is due as soon as we look."""
        check_queues(queues)
        end = self._clock.monotonic() + timeout
        session = await self._here()
        poll = self._options.poll
        with session.waiters.register(queues) as waiter:
            # Before the first look: what comes after it is heard.
            await session.bell.listen()
            while True:
                patience = await lease.patience(session, waiter.queues, kinds or {})
                nap = min(poll, end - self._clock.monotonic(), poll if patience is None else patience)
                if nap <= 0 or await self._clock.wait(waiter.event, nap):
                    return

    # --- beside the queue ---

    async def document(self, kind: str, key: str) -> Document | None:
        return await shelf.document(await self._here(), kind, key)

    async def documents(self, kind: str) -> tuple[Document, ...]:
        return await shelf.documents(await self._here(), kind)

    async def write_documents(
        self, writes: Sequence[DocumentWrite], audit: NewEntry | None = None
    ) -> tuple[Document, ...]:
        check_writes(writes)
        check_entries((audit,))
        return await shelf.write_documents(await self._here(), writes, audit)

    async def append(self, entries: Sequence[NewEntry]) -> tuple[int, ...]:
        check_entries(entries)
        return await shelf.append(await self._here(), entries)

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        return await shelf.journal(await self._here(), topic, after, limit)

    # --- upkeep ---

    def upkeep(self) -> RedisUpkeep:
        """Of the namespace, whether the store is open or not."""
        return RedisUpkeep(self._options)

    async def check(self, *, quick: bool = False) -> Checkup:
        return await checkup.check(await self._here(), quick=quick)

    async def backup(self, path: str, *, force: bool = False) -> Backup:  # noqa: ARG002 - the server copies itself
        await self._here()
        raise ConfigError(
            "a Redis store is copied by its server",
            field="store",
            hint="BGSAVE writes dump.rdb; or copy the appendonlydir of the server",
        )
