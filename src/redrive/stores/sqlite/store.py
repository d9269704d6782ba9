"""The SQLite store: the contract of stores.base over one file, for several processes of one machine.

The verbs hand closures to two threads: one writes, many closures to a commit (writer.py), one reads (reader.py). What a
closure does stands in the module of its verb, and its SQL in `sql/sqlite/<verb>.sql`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Self, TypeVar

from redrive.core import durations, sizes
from redrive.core.acts import (
    Act,
    Amended,
    Change,
)
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Ids, Selection
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
from redrive.errors import ConfigError, StoreError, StoreUnavailable
from redrive.stores import packing, reencrypting, residue
from redrive.stores.aside import aside, through
from redrive.stores.base import IDS_LIMIT
from redrive.stores.bodies import Bodies, Usable
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
from redrive.stores.reencrypting import Rewrite
from redrive.stores.sqlite import (
    amend,
    configure,
    families,
    find,
    ground,
    in_place,
    lease,
    limits,
    put,
    reclaim,
    settle,
    shelf,
    sweep,
    take_in,
)
from redrive.stores.sqlite import ballast as reserve
from redrive.stores.sqlite.ballast import BallastSize
from redrive.stores.sqlite.binding import Binding, BindingName, check_name, choose
from redrive.stores.sqlite.compile import MOST_IDS
from redrive.stores.sqlite.connect import Durability, Settings
from redrive.stores.sqlite.search import Asked, Oldest, Search
from redrive.stores.sqlite.session import Session
from redrive.stores.sqlite.tx import Tx
from redrive.stores.sqlite.upkeep import SqliteUpkeep
from redrive.stores.sqlite.writer import ActJob, PutJob

T = TypeVar("T")

POLL: Millis = 1_000
"""How often a waiter looks by itself, should a wake-up be lost."""


class SqliteStore:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Durability = "power-loss",
        busy_timeout: durations.Duration = "30s",
        binding: BindingName = "auto",
        compress_above: sizes.Size | None = packing.ABOVE,
        network: ground.Network = "refuse",
        ballast: BallastSize = reserve.DEFAULT,
    ) -> None:
        if durability not in ("power-loss", "process-crash"):
            raise ConfigError(f"{durability!r} is not one of power-loss, process-crash", field="durability")
        self._path = os.fspath(path)
        self._durability: Durability = durability
        self._busy_timeout = durations.parse(busy_timeout, field="busy_timeout")
        self._binding = check_name(binding)
        above = packing.threshold(compress_above)
        self._bodies = Bodies(sizes.MAX if above is None else above)
        self._network = ground.check_choice(network)
        self._ballast = reserve.parse(ballast)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._session: Session | None = None
        self._library = ""
        self._was_open = False
        self._door = (os.getpid(), asyncio.Lock())

    # --- life ---

    async def open(self) -> Self:
        async with self._alone():
            if self._session is None or self._session.pid != os.getpid():
                await self._begin()
        return self

    async def close(self) -> None:
        async with self._alone():
            session, self._session = self._session, None
            if session is None:
                return
            if session.pid == os.getpid():
                await through(session.close())
            else:
                session.abandon()

    def _alone(self) -> asyncio.Lock:
        """One opens or closes at a time. A child does not wait for a task of its parent."""
        pid, lock = self._door
        if pid != os.getpid():
            lock = asyncio.Lock()
            self._door = (os.getpid(), lock)
        return lock

    async def _begin(self) -> Session:
        if self._session is not None:
            self._session.abandon()
        path, binding = await aside(self._look)
        settings = Settings(path, self._durability, self._busy_timeout, binding, self._ballast)
        session = Session(settings, self._clock)
        await session.open()
        self._session = session
        self._library = f"sqlite {binding.version} ({binding.name})"
        self._was_open = True
        return session

    def _look(self) -> tuple[str, Binding]:
        """Where the file really is, and by which library: all that is asked of the disk before, in one thread."""
        # Now and not later: a change of directory must not lead the connections to different files.
        path = self._path = os.path.realpath(self._path)
        ground.check_names(path, self._network)
        ground.check(path, self._network)
        return path, choose(self._binding, path)

    def info(self) -> StoreInfo:
        session = self._session
        return StoreInfo(
            engine="sqlite",
            location=self._path,
            durability=self._durability if session is None else session.durability,
            library=self._library,
            schema=0 if session is None else session.schema,
            keys=self._bodies.keys,
            missing_keys=self._bodies.missing_keys,
        )

    def use_keys(self, keyring: Keyring | None) -> None:
        self._bodies.keyring = keyring

    def keyring(self) -> Keyring | None:
        return self._bodies.keyring

    async def _here(self) -> Session:
        """The session of this process. A store that was open before a fork goes on in the child with its own."""
        session = self._session
        if session is not None and session.pid == os.getpid():
            return session
        if session is not None:
            await self.open()
            return await self._here()
        raise StoreUnavailable(
            f"the store {self._path} is {'closed' if self._was_open else 'not open'}",
            hint="await store.open() first, and use it before close()",
        )

    async def _write(
        self, work: Callable[[Tx], T], audit: NewEntry | None = None, *, done: Callable[[T], object] = lambda _: True
    ) -> T:
        """With the entry, where the work was `done`."""
        check_entries((audit,))

        def audited(tx: Tx) -> T:
            result = work(tx)
            if audit is not None and done(result):
                shelf.append(tx, (audit,))
            return result

        return await (await self._here()).writer.submit(work if audit is None else audited)

    async def _act(self, work: Callable[[Tx], T]) -> T:
        return await (await self._here()).writer.accept(ActJob(work))

    async def _read(self, work: Callable[[Tx], T]) -> T:
        return await (await self._here()).reader.submit(work)

    # --- the way of an item ---

    async def put(
        self, items: Sequence[NewItem], within: object | None = None, *, audit: NewEntry | None = None
    ) -> PutResult:
        check_not_within(within, "SQLite")
        check_new(items)
        writer = (await self._here()).writer

        def write(packed: Sequence[NewItem]) -> Awaitable[PutResult]:
            if audit is None:
                return writer.accept(PutJob(packed))
            return self._write(lambda tx: put.put(tx, packed), audit, done=lambda result: result.added)

        return await self._bodies.write(self, lambda: self._bodies.items(items), write)

    async def lease(self, request: LeaseRequest) -> Leases:
        check_lease(request)
        session = await self._here()
        leases = await session.writer.submit(lambda tx: lease.lease(tx, session.memo, request))
        return await self._given(session, leases)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            if settlement.follow_ups:
                check_follow_ups(settlement.follow_ups)
        if then is not None:
            check_lease(then)
        session = await self._here()
        memo = session.memo

        async def write(packed: Sequence[Settlement]) -> Settled:
            def work(tx: Tx) -> Settled:
                answers = settle.settle(tx, memo, packed)
                return Settled(answers, None if then is None else lease.lease(tx, memo, then))

            return await session.writer.submit(work)

        settled = await self._bodies.write(self, lambda: self._bodies.settlements(settlements), write)
        memo.forget(settlements)
        if settled.leases is not None:
            return Settled(settled.answers, await self._given(session, settled.leases))
        return settled

    async def _given(self, session: Session, leases: Leases) -> Leases:
        session.memo.remember(leases.items)
        usable = await self._unpacked(session, leases.items)
        return Leases(usable.items, leases.suspects_due, usable.locked, leases.more)

    async def _unpacked(self, session: Session, items: tuple[Item, ...], *, lapsed: bool = False) -> Usable:
        """Of leased items, after the commit that leased them. One that does not unpack becomes a letter."""
        if not packing.any_packed(items):
            return Usable(items)
        usable = await self._bodies.usable([(item, None) for item in items], lapsed=lapsed)
        if usable.ends:
            # If this fails, their leases lapse, and whoever reclaims them comes by here again.
            with contextlib.suppress(StoreError):
                await session.writer.submit(lambda tx: settle.settle(tx, session.memo, usable.ends))
        return usable

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        return await self._write(lambda tx: settle.extend(tx, held, ttl))

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
        named = None if ids is None else tuple(dict.fromkeys(ids))
        ask = reclaim.Reclaim(tuple(dict.fromkeys(queues)), ttl, limit, named, force)
        session = await self._here()
        taken = await session.writer.submit(lambda tx: reclaim.reclaim(tx, session.memo, ask))
        return (await self._unpacked(session, taken, lapsed=True)).items

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        check_letters(ids, worker, ttl)
        given = await self._write(lambda tx: in_place.lease(tx, ids, worker, ttl, early=early, reserved=reserved))
        return await self._bodies.whole(given)

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        check_letter_settlements(settlements)
        return await self._bodies.write(
            self,
            lambda: self._bodies.settlements(settlements),
            lambda packed: self._write(lambda tx: in_place.settle_all(tx, packed)),
        )

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        check_amend(change, by)

        async def write(packed: Change) -> Amended:
            return await self._act(lambda tx: amend.amend(tx, selection, packed, by, expect))

        return await self._bodies.edit(self, selection, change, write)

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        check_act(by)
        check_imports(histories)
        return await self._bodies.write(
            self,
            lambda: self._bodies.histories(histories),
            lambda packed: self._write(lambda tx: take_in.take_in(tx, packed, by)),
        )

    # --- looking ---

    async def get(self, item_id: str) -> History:
        return await self._bodies.whole_history(await self._read(lambda tx: find.get(tx, item_id)))

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        check_page(limit)
        await self._bodies.check_filter(selection, self.tally)
        return await residue.page(self._looks(oldest=oldest), selection, limit, cursor)

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        check_page(limit, IDS_LIMIT)
        await self._bodies.check_filter(selection, self.tally)
        return await residue.ids(self._looks(oldest=oldest), selection, limit, cursor)

    def _looks(self, *, oldest: bool) -> residue.Looks:
        async def find_them(selection: Selection, limit: int, cursor: str | None) -> Page:
            found = await self._search(Search(Asked(selection, limit, cursor, oldest), find.items_at))
            return Page(await self._bodies.whole(tuple(found.found)), found.next, found.scanned)

        async def find_ids(selection: Selection, limit: int, cursor: str | None) -> IdPage:
            found = await self._search(Search(Asked(selection, limit, cursor, oldest), find.ids_at))
            return IdPage(tuple(found.found), found.next)

        return residue.Looks(find_them, find_ids, lambda: self._read(lambda tx: tx.now), oldest)

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        return await self._read(lambda tx: find.tally(tx, members=members))

    async def _search(self, search: Search[T]) -> Search[T]:
        if not await self._read(search.whole):
            while not await self._read(search.part):
                pass
        return search

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        return await self._read(lambda tx: find.causes(tx, queue, limit))

    async def changes(self, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        check_page(limit)
        return await self._bodies.whole_changes(await self._read(lambda tx: find.changes(tx, after, limit)))

    # --- keeping house ---

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        check_act(by)
        pruned = await self._act(lambda tx: amend.prune(tx, selection, limit, by))
        if pruned is None:
            oldest = Oldest(amend.prunable(selection), min(limit, MOST_IDS))
            while not await self._read(oldest.part):
                pass
            among = Ids(tuple(oldest.ids))
            pruned = await self._act(lambda tx: amend.prune(tx, selection, limit, by, among))
        return pruned or ()

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
        return await self._write(lambda tx: put.rewrite(tx, rewrites, by))

    async def tombstone(self, item_id: str) -> Tombstone | None:
        return await self._read(lambda tx: find.tombstone(tx, item_id))

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        check_change(queue, change)
        self._bodies.learn(queue, await self._write(lambda tx: configure.configure(tx, queue, change), audit))

    async def configure_route(self, route: str, capacity: int | None, audit: NewEntry | None = None) -> None:
        check_route(route, capacity)
        await self._write(lambda tx: configure.configure_route(tx, route, capacity), audit)

    async def settings(self, queue: str) -> QueueSettings:
        return self._bodies.learn(queue, await self._read(lambda tx: configure.settings(tx, queue)))

    async def set_gate(self, write: GateWrite, audit: NewEntry | None = None) -> Gate:
        check_gate(write)
        return await self._write(lambda tx: configure.set_gate(tx, write), audit)

    async def gates(self) -> tuple[Gate, ...]:
        return await self._read(limits.gates)

    async def gate(self, name: str) -> Gate | None:
        return await self._read(lambda tx: limits.gate_of(tx, name))

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        check_act(by)
        check_page(limit)
        return await self._act(lambda tx: sweep.sweep(tx, limit, by, cursor))

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        check_text("worker", worker)
        await self._write(lambda tx: shelf.beat(tx, worker, facts, ttl))

    async def workers(self) -> tuple[WorkerBeat, ...]:
        return await self._read(shelf.workers)

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        check_text("name", name)
        check_text("owner", owner)
        return await self._write(lambda tx: shelf.elect(tx, name, owner, ttl))

    async def kinds(self, queue: str) -> tuple[str, ...]:
        return await self._read(lambda tx: find.kinds(tx, queue))

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Returns for a signal, for a due time that has come, or when something is due as soon as we look."""
        check_queues(queues)
        end = self._clock.monotonic() + timeout
        # Before the first look: what comes after it finds the waiter registered.
        with (await self._here()).waiters.register(queues) as waiter:
            while True:
                patience = await self._read(lambda tx: _patience(tx, waiter.queues, kinds or {}))
                nap = min(POLL, end - self._clock.monotonic(), POLL if patience is None else patience)
                if nap <= 0 or await self._clock.wait(waiter.event, nap):
                    return

    # --- beside the queue ---

    async def document(self, kind: str, key: str) -> Document | None:
        return await self._read(lambda tx: shelf.document(tx, kind, key))

    async def documents(self, kind: str) -> tuple[Document, ...]:
        return await self._read(lambda tx: shelf.documents(tx, kind))

    async def write_documents(
        self, writes: Sequence[DocumentWrite], audit: NewEntry | None = None
    ) -> tuple[Document, ...]:
        check_writes(writes)
        return await self._write(lambda tx: shelf.write_documents(tx, writes), audit)

    async def append(self, entries: Sequence[NewEntry]) -> tuple[int, ...]:
        check_entries(entries)
        return await self._write(lambda tx: shelf.append(tx, entries))

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        return await self._read(lambda tx: shelf.journal(tx, topic, after, limit))

    # --- upkeep ---

    def upkeep(self) -> SqliteUpkeep:
        """Of the file, whether the store is open or not."""
        return SqliteUpkeep(self._path, self._durability, self._busy_timeout, self._binding, self._network)

    async def check(self, *, quick: bool = False) -> Checkup:
        await self._here()
        return await self.upkeep().check(quick=quick)

    async def backup(self, path: str, *, force: bool = False) -> Backup:
        await self._here()
        return await self.upkeep().backup(path, force=force)


def _patience(tx: Tx, queues: frozenset[str], kinds: Mapping[str, tuple[str, ...]]) -> Millis | None:
    """How long until something of these queues is due; None if nothing will be by itself."""
    times = [families.next_change(tx, queue, kinds.get(queue)) for queue in queues]
    return min([when - tx.now for when in times if when is not None], default=None)
