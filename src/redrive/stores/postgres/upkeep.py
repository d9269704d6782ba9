"""Upkeep of a PostgreSQL schema. Each act has connections of its own."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as with_other

import psycopg
from msgspec.structs import replace

from redrive.core.verbs import Backup, Checkup, Finding
from redrive.errors import ConfigError, StoreError
from redrive.stores import migrate, script
from redrive.stores.migrate import Migration
from redrive.stores.postgres import checkup, faults
from redrive.stores.postgres.connect import connect
from redrive.stores.postgres.install import Facts, install
from redrive.stores.postgres.options import Options
from redrive.stores.postgres.pool import finish
from redrive.stores.postgres.session import Session
from redrive.stores.statements import load_all
from redrive.stores.upkeep import StoreStatus

ENGINE = "postgres"
PATIENCE = 3_600_000
"""Milliseconds. A check reads everything, and nobody waits for it."""


class PostgresStatus(StoreStatus, frozen=True, kw_only=True):
    replica: bool
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    size: int = 0
    """Bytes of our tables with their indexes."""
    dead_rows: int = 0
    oldest_xmin_age: int = 0
    """Of the oldest snapshot that somebody holds, in transactions, as far as this user may see."""
    unfolded: int = 0

    def unusable(self) -> str:
        if self.replica:
            return self.trouble or "no app can work with it: a read-only replica; use the address of the primary server"
        return super().unusable()

    def _facts_in_words(self) -> list[tuple[str, str]]:
        names = ("fsync", "full_page_writes", "synchronous_commit")
        words = [("server", ", ".join(f"{name} {getattr(self, name)}" for name in names))]
        if self.replica:
            words += [("replica", "a read-only copy of another server, at which no app can work")]
        if self.trouble:
            return words
        return [
            *words,
            ("tables", f"{self.size:,} bytes with their indexes"),
            ("dead rows", f"{self.dead_rows:,}, until the server's autovacuum takes them away"),
            ("snapshot", f"the oldest is {self.oldest_xmin_age:,} transactions old; rows that died since then stay"),
            ("counters", f"{self.unfolded:,} rows to be added up by a worker"),
        ]


class PostgresUpkeep:
    def __init__(self, options: Options) -> None:
        self._options = options
        # Files are read here, and not in the loop.
        migrate.known(ENGINE)
        load_all(ENGINE)

    async def check_is_there(self) -> None:
        async with self._session() as session:
            await self._check_is_there(session)

    async def status(self) -> PostgresStatus:
        async with self._session() as session:
            await self._check_is_there(session)
            facts = Facts(*(await session.read(session.sql("open", "facts")))[0])
            found = PostgresStatus(
                engine=ENGINE,
                location=f"{self._options.server}?schema={self._options.schema}",
                binding=f"psycopg {psycopg.__version__}",
                version=facts.version.split(maxsplit=1)[0],
                known=script.newest(ENGINE),
                durability=facts.durability,
                replica=facts.in_recovery,
                fsync=facts.fsync,
                full_page_writes=facts.full_page_writes,
                synchronous_commit=facts.synchronous_commit,
            )
            try:
                return await self._read(session, found)
            except StoreError as error:
                return replace(found, trouble=str(error))

    async def pending(self) -> tuple[Migration, ...]:
        """All of them for a database that has none of our tables yet."""
        async with self._session() as session:
            return migrate.pending(ENGINE, await self._applied(session), self._options.location)

    def script(self, pending: tuple[Migration, ...]) -> str:
        return script.postgres(self._options.schema, pending)

    async def migrate(self) -> tuple[int, ...]:
        async with self._session() as session:
            before = await self._applied(session)
            await self._install()
            return tuple([number for number in await self._applied(session) if number not in before])

    async def check(self, *, quick: bool) -> Checkup:
        async with self._session(PATIENCE) as session:
            await self._check_is_there(session)
            return await checkup.check(session, quick=quick)

    def repairable(self, checked: Checkup) -> frozenset[str]:
        return checkup.REPAIRABLE if checkup.can_repair(checked) else frozenset()

    async def repair(self) -> tuple[Finding, ...]:
        async with self._session(PATIENCE) as session:
            return await checkup.repair(session)

    async def backup(self, path: str, *, force: bool) -> Backup:  # noqa: ARG002 - the server's own means do it
        command = ["pg_dump", f"--schema={self._options.schema}", "--format=custom", f"--file={path}"]
        raise ConfigError(
            "a PostgreSQL store is copied by the server's own means",
            field="store",
            hint=shlex.join([*command, self._options.server]),
        )

    @asynccontextmanager
    async def _session(self, timeout: int = 0) -> AsyncIterator[Session]:
        """As the store's, or with more patience."""
        options = with_other(self._options, timeout=max(timeout, self._options.timeout))
        session = Session(options, None)
        try:
            yield session
        finally:
            await session.close()

    async def _check_is_there(self, session: Session) -> None:
        if not await self._is_there(session):
            raise faults.nothing_there(self._options)

    async def _is_there(self, session: Session) -> bool:
        return bool((await session.read(session.sql("status", "there"), (self._options.schema,)))[0][0])

    async def _applied(self, session: Session) -> dict[int, str]:
        if not await self._is_there(session):
            return {}
        rows = await session.read(session.sql("open", "applied"))
        return {number: checksum for number, checksum in rows}  # noqa: C416 - rows are tuples of any length to mypy

    async def _install(self) -> None:
        wire = await connect(self._options)
        try:
            await install(wire, self._options)
        except psycopg.Error as error:
            raise faults.translate(error, self._options) from error
        finally:
            finish(wire)

    async def _read(self, session: Session, found: PostgresStatus) -> PostgresStatus:
        applied = await self._applied(session)
        ours = migrate.known(ENGINE)
        checksums = {migration.number: migration.checksum for migration in ours}
        ((size, dead),) = await session.read(session.sql("status", "tables"), (self._options.schema,))
        ((oldest,),) = await session.read(session.sql("status", "horizon"))
        ((unfolded,),) = await session.read(session.sql("status", "unfolded"))
        return replace(
            found,
            schema=max(applied, default=0),
            pending=tuple([migration.name for migration in ours if migration.number not in applied]),
            changed=tuple([n for n, checksum in applied.items() if n in checksums and checksums[n] != checksum]),
            size=size,
            dead_rows=dead,
            oldest_xmin_age=oldest,
            unfolded=unfolded,
        )
