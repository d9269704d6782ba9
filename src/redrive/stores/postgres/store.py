"""The PostgreSQL store: the contract of stores.base over a server, for workers on many machines.

The verbs on an item's way are one SQL function each (sql/postgres/<verb>.sql), so one round trip, atomic by themselves,
and without any state of a session. The rest is driven from here in transactions, because its rules live in `core`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from redrive.core import codec, durations, sizes
from redrive.core.acts import (
    Act,
    Amended,
    Change,
)
from redrive.core.families import is_family
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
from redrive.errors import ConfigError, OutcomeUnknown, StoreError, StoreUnavailable
from redrive.stores import migrate, packing, reencrypting
from redrive.stores.aside import aside
from redrive.stores.base import IDS_LIMIT
from redrive.stores.bodies import Bodies, Judged, Usable
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
    check_page,
    check_queues,
    check_route,
    check_text,
    check_writes,
)
from redrive.stores.clock import Clock, SystemClock
from redrive.stores.imports import check_imports
from redrive.stores.keyring import Keyring
from redrive.stores.postgres import (
    amend,
    find,
    in_place,
    lease,
    options,
    prune,
    put,
    reclaim,
    settings,
    settle,
    shelf,
    take_in,
)
from redrive.stores.postgres.extra import check_extra
from redrive.stores.postgres.homes import Homes
from redrive.stores.reencrypting import Rewrite
from redrive.stores.statements import load_all

if TYPE_CHECKING:
    from redrive.stores.postgres.install import Installed
    from redrive.stores.postgres.session import Session
    from redrive.stores.postgres.upkeep import PostgresUpkeep

DAY: Millis = 24 * 60 * 60 * 1000


class PostgresStore:
    """`url` as libpq takes it; the other arguments are also options of a store's URL (stores/url.py)."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        schema: str = options.SCHEMA,
        pool: int = options.POOL,
        timeout: durations.Duration = options.TIMEOUT,
        connect_timeout: durations.Duration = options.CONNECT_TIMEOUT,
        notify: bool = True,
        poll: durations.Duration = options.POLL,
        compress_above: sizes.Size | None = packing.ABOVE,
    ) -> None:
        check_extra()
        self._options = options.make(
            url,
            schema=schema,
            pool=pool,
            timeout=timeout,
            connect_timeout=connect_timeout,
            notify=notify,
            poll=poll,
        )
        above = packing.threshold(compress_above)
        self._bodies = Bodies(sizes.MAX if above is None else above)
        self._pinning = clock
        self._clock: Clock = SystemClock() if clock is None else clock
        self._makes = True
        self._homes = Homes(self._begin)
        self._installed: Installed | None = None

    # --- life ---

    async def open(self) -> Self:
        await self._homes.open()
        return self

    async def open_existing(self) -> Self:
        self._makes = False
        try:
            return await self.open()
        finally:
            self._makes = True

    async def close(self) -> None:
        await self._homes.close()

    async def _begin(self) -> Session:
        # psycopg is large, and optional; the loop need not wait while it is imported.
        speaking = await aside(_speaking)
        session: Session = speaking.Session(self._options, self._pinning)
        self._installed = await session.open(make=self._makes)
        return session

    def info(self) -> StoreInfo:
        installed = self._installed
        return StoreInfo(
            engine="postgres",
            location=self._options.location,
            durability="none" if installed is None else installed.facts.durability,
            library="" if installed is None else installed.library,
            schema=0 if installed is None else installed.schema,
            keys=self._bodies.keys,
            missing_keys=self._bodies.missing_keys,
        )

    def use_keys(self, keyring: Keyring | None) -> None:
        self._bodies.keyring = keyring

    def keyring(self) -> Keyring | None:
        return self._bodies.keyring

    async def _here(self) -> Session:
        """The session of this process and loop. A store that was open before a fork goes on in the child."""
        session = await self._homes.here()
        if session is None:
            raise StoreUnavailable(
                f"the store {self._options.location} is {'not open' if self._installed is None else 'closed'}",
                hint="await store.open() first, and use it before close()",
            )
        return session

    # --- the way of an item ---

    async def put(
        self, items: Sequence[NewItem], within: object | None = None, *, audit: NewEntry | None = None
    ) -> PutResult:
        check_new(items)
        put.check_delays(items)
        check_entries((audit,))
        if within is not None and audit is not None:
            hint = "write the entry into your own tables, or put without within"
            raise ConfigError("a put in your transaction has no audit entry", field="audit", hint=hint)
        session = await self._here()

        async def write(packed: Sequence[NewItem]) -> PutResult:
            if within is not None:
                return await put.put_joined(session, packed, within, self._bodies)
            if audit is not None:
                return await put.put_audited(session, packed, audit)
            if put.is_heavy(packed):
                return await put.put(session, packed)
            return await session.gather.put(packed)

        return await self._bodies.write(self, lambda: self._bodies.items(items), write)

    async def lease(self, request: LeaseRequest) -> Leases:
        check_lease(request)
        session = await self._here()
        answer = await lease.lease(session, request)
        return await self._given(session, answer.judged, suspects_due=answer.suspect_waits, more=answer.more)

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        for settlement in settlements:
            if settlement.follow_ups:
                check_follow_ups(settlement.follow_ups)
        if then is not None:
            check_lease(then)
        session = await self._here()
        apart = then is not None and any(is_family(want.queue) for want in then.wants)
        answers, judged, suspect_waits = await self._bodies.write(
            self,
            lambda: self._bodies.settlements(settlements),
            lambda packed: settle.settle(session, packed, None if apart else then),
        )
        if then is not None and apart:
            return Settled(answers, await self._lease_apart(then))
        if judged is None:
            return Settled(answers)
        return Settled(answers, await self._given(session, judged, suspects_due=suspect_waits))

    async def _lease_apart(self, then: LeaseRequest) -> Leases:
        """After a settle, in a transaction of its own: a lease of a family locks members that it finds out about, and
        these locks come first. If it fails, the settle has happened; both may be repeated.
        """
        try:
            return await self.lease(then)
        except StoreUnavailable as error:
            raise OutcomeUnknown(f"what was to end has ended, the lease that followed failed: {error}") from error

    async def _given(self, session: Session, judged: list[Judged], *, suspects_due: bool, more: bool = False) -> Leases:
        usable = await self._usable(session, judged)
        return Leases(usable.items, suspects_due, usable.locked, more)

    async def _usable(self, session: Session, judged: list[Judged], *, lapsed: bool = False) -> Usable:
        """Of what was leased, after the commit. One that is damaged or does not unpack becomes a letter."""
        usable = await self._bodies.usable(judged, lapsed=lapsed)
        if usable.ends:
            # If this fails, their leases lapse, and whoever reclaims them comes by here again.
            with contextlib.suppress(StoreError):
                await settle.settle(session, usable.ends, None)
        return usable

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
        session = await self._here()
        taken = await reclaim.reclaim(session, queues, ttl, limit, ids, force=force)
        return (await self._usable(session, taken, lapsed=True)).items

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        check_letters(ids, worker, ttl)
        given = await in_place.lease(await self._here(), ids, worker, ttl, early=early, reserved=reserved)
        return await self._bodies.whole(given)

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        check_letter_settlements(settlements)
        session = await self._here()
        return await self._bodies.write(
            self, lambda: self._bodies.settlements(settlements), lambda packed: in_place.settle(session, packed)
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
        return await self._bodies.whole_history(await find.get(await self._here(), item_id))

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        check_page(limit)
        await self._bodies.check_filter(selection, self.tally)
        return await find.find(await self._here(), self._bodies, selection, limit, cursor, oldest=oldest)

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        check_page(limit, IDS_LIMIT)
        await self._bodies.check_filter(selection, self.tally)
        return await find.ids(await self._here(), self._bodies, selection, limit, cursor, oldest=oldest)

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        return await find.tally(await self._here(), members=members)

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        return await find.causes(await self._here(), queue, limit)

    async def changes(self, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        check_page(limit)
        return await self._bodies.whole_changes(await find.changes(await self._here(), after, limit))

    # --- keeping house ---

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        check_act(by)
        return await prune.prune(await self._here(), selection, limit, by)

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
        return await put.rewrite(await self._here(), rewrites, by)

    async def tombstone(self, item_id: str) -> Tombstone | None:
        return await find.tombstone(await self._here(), item_id)

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        check_change(queue, change)
        check_entries((audit,))
        self._bodies.learn(queue, await settings.configure(await self._here(), queue, change, audit))

    async def configure_route(self, route: str, capacity: int | None, audit: NewEntry | None = None) -> None:
        check_route(route, capacity)
        check_entries((audit,))
        await settings.configure_route(await self._here(), route, capacity, audit)

    async def settings(self, queue: str) -> QueueSettings:
        return self._bodies.learn(queue, await settings.settings(await self._here(), queue))

    async def set_gate(self, write: GateWrite, audit: NewEntry | None = None) -> Gate:
        check_gate(write)
        check_entries((audit,))
        return await settings.set_gate(await self._here(), write, audit)

    async def gates(self) -> tuple[Gate, ...]:
        return await settings.gates(await self._here())

    async def gate(self, name: str) -> Gate | None:
        return next(iter(await settings.gates(await self._here(), name)), None)

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        check_act(by)
        check_page(limit)
        return await prune.sweep(await self._here(), limit, by, cursor)

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        check_text("worker", worker)
        session = await self._here()
        params = (session.pinned(), worker, codec.encode(facts), facts.lasts(ttl), DAY)
        await session.call(session.sql("beat", "call"), params)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        return await shelf.workers(await self._here())

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        check_text("name", name)
        check_text("owner", owner)
        session = await self._here()
        rows = await session.call(session.sql("elect", "call"), (session.pinned(), name, owner, ttl))
        return bool(rows[0][0])

    async def kinds(self, queue: str) -> tuple[str, ...]:
        return await find.kinds(await self._here(), queue)

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Returns for a signal, for a due time that has come, or when something is due as soon as we look."""
        check_queues(queues)
        end = self._clock.monotonic() + timeout
        session = await self._here()
        poll = self._options.poll
        # Both before the first look: what comes after it finds us registered here, and listening there.
        with session.waiters.register(queues) as waiter:
            await session.listen()
            while True:
                patience = await find.patience(session, waiter.queues, kinds)
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

    def upkeep(self) -> PostgresUpkeep:
        """Of the schema, whether the store is open or not."""
        made: PostgresUpkeep = import_module("redrive.stores.postgres.upkeep").PostgresUpkeep(self._options)
        return made

    async def check(self, *, quick: bool = False) -> Checkup:
        from redrive.stores.postgres import checkup

        return await checkup.check(await self._here(), quick=quick)

    async def backup(self, path: str, *, force: bool = False) -> Backup:  # noqa: ARG002 - nothing is copied
        from redrive.stores.postgres import checkup

        raise checkup.no_backup(await self._here(), self._options.database)


def _speaking() -> Any:
    """The module that needs psycopg; and every statement is read, so that nothing is left to be read in the loop."""
    migrate.known("postgres")
    load_all("postgres")
    return import_module("redrive.stores.postgres.session")
