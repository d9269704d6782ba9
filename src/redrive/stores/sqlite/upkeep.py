"""Upkeep of a SQLite database. Each act has a connection and a thread of its own."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from msgspec.structs import replace

from redrive.core.item import Instant, Millis
from redrive.core.verbs import Backup, Checkup, Finding
from redrive.errors import ConfigError, StoreCorrupt, StoreError, StoreUnavailable, UnsafeFileSystem
from redrive.stores import migrate, script
from redrive.stores.aside import aside
from redrive.stores.clock import SystemClock
from redrive.stores.migrate import Migration
from redrive.stores.sqlite import backup, checkup, connect, faults, ground
from redrive.stores.sqlite.binding import BindingName, Connection, choose, claimed, is_risky
from redrive.stores.sqlite.checkup import REPAIRABLE, can_repair
from redrive.stores.sqlite.connect import ENGINE, Durability, Settings
from redrive.stores.sqlite.forks import connected
from redrive.stores.sqlite.ground import Network
from redrive.stores.upkeep import StoreAbsent, StoreStatus

T = TypeVar("T")


class SqliteStatus(StoreStatus, frozen=True, kw_only=True):
    file_system: str
    """As the system names it; empty where it does not say."""
    size: int
    log_size: int
    ballast_size: int
    page_size: int = 0
    pages: int = 0
    free_pages: int = 0

    def _engine_in_words(self) -> str:
        if not self.risky:
            return super()._engine_in_words()
        fix = 'pip install "redrive[sqlite]" brings one without it'
        risk = f"which can damage a database that others write; redrive works around it; {fix}"
        return f"{super()._engine_in_words()}, {risk}"

    def _facts_in_words(self) -> list[tuple[str, str]]:
        words = [("lies on", self.file_system or "a file system that the system does not name")]
        words += [("database", f"{self.size:,} bytes")]
        if not self.trouble:
            free = self.free_pages * self.page_size
            words += [
                ("pages", f"{self.pages:,} of {self.page_size:,} bytes, with those that are still in the log"),
                ("free", f"{free:,} bytes in {self.free_pages:,} pages, to be used again before the file grows"),
            ]
        words += [("log", f"{self.log_size:,} bytes")]
        return [*words, ("ballast", f"{self.ballast_size:,} bytes" if self.ballast_size else "none")]


class SqliteUpkeep:
    def __init__(
        self, path: str, durability: Durability, busy_timeout: Millis, binding: BindingName, network: Network
    ) -> None:
        self._path = path
        self._durability = durability
        self._busy_timeout = busy_timeout
        self._binding = binding
        self._network = network

    async def check_is_there(self) -> None:
        await _apart(lambda _: self._settings())

    async def status(self) -> SqliteStatus:
        return await _apart(lambda _: self._status())

    async def pending(self) -> tuple[Migration, ...]:
        return await _apart(lambda _: self._pending())

    def script(self, pending: tuple[Migration, ...]) -> str:
        return script.sqlite(pending)

    async def migrate(self, now: Instant | None = None) -> tuple[int, ...]:
        at = SystemClock().now() if now is None else now
        return await _apart(lambda _: self._migrate(at))

    async def check(self, *, quick: bool) -> Checkup:
        return await _apart(lambda stopped: self._check(stopped, quick=quick))

    def repairable(self, checkup: Checkup) -> frozenset[str]:
        return REPAIRABLE if can_repair(checkup) else frozenset()

    async def repair(self) -> tuple[Finding, ...]:
        return await _apart(lambda _: self._repair())

    async def backup(self, path: str, *, force: bool) -> Backup:
        if not path or "\0" in path:
            raise ConfigError(f"{path!r} names no file", field="path")
        return await _apart(lambda stopped: self._backup(path, stopped, force=force))

    def _settings(self) -> Settings:
        path = str(Path(self._path).absolute())
        try:
            found = os.stat(path)  # noqa: PTH116 - never opened here: closing it would drop SQLite's locks
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be reached: {error.strerror}") from error
        if found is None or not stat.S_ISREG(found.st_mode) or not found.st_size:
            absent = StoreAbsent if found is None else StoreUnavailable
            raise absent(f"no database at {path}", hint="set --store or REDRIVE_STORE; an app makes a new one")
        return Settings(path, self._durability, self._busy_timeout, choose(self._binding, path))

    @contextmanager
    def _visit(self, settings: Settings, open_: Callable[[Settings], Connection]) -> Iterator[Connection]:
        try:
            ground.check(settings.path, self._network)
            with connected(), claimed(os.path.realpath(settings.path), settings.binding):
                connection = open_(settings)
                try:
                    yield connection
                finally:
                    connection.close()
        except Exception as error:
            if faults.is_damage(error) and not isinstance(error, StoreCorrupt):
                raise faults.damaged(f"{settings.path} is not a usable database: {error}") from error
            told = faults.translate(error, settings.path)
            if told is error:
                raise
            raise told from error

    def _status(self) -> SqliteStatus:
        settings = self._settings()
        binding = settings.binding
        real = os.path.realpath(settings.path)
        found = SqliteStatus(
            engine=ENGINE,
            location=settings.path,
            binding=binding.name,
            version=binding.version,
            risky=is_risky(binding),
            file_system=ground.kind_of(settings.path) or "",
            size=_size(real),
            log_size=_size(f"{real}-wal"),
            ballast_size=_size(f"{real}-ballast"),
            known=max(migration.number for migration in migrate.known(ENGINE)),
        )
        try:
            with self._visit(settings, _open_to_look) as connection:
                return _read(connection, found)
        except (StoreError, UnsafeFileSystem) as error:
            return replace(found, trouble=str(error))

    def _pending(self) -> tuple[Migration, ...]:
        settings = self._settings()
        with self._visit(settings, _open_to_look) as connection:
            connect.check_ours(connection, settings.path)
            return migrate.pending(ENGINE, connect.applied_to(connection), settings.path)

    def _migrate(self, now: Instant) -> tuple[int, ...]:
        settings = self._settings()
        with self._visit(settings, _open_to_look) as connection:
            connect.check_ours(connection, settings.path)
            before = connect.applied_to(connection)
        with self._visit(settings, lambda settings: connect.open_writer(settings, now)) as connection:
            return tuple([number for number in connect.applied_to(connection) if number not in before])

    def _check(self, stopped: Callable[[], bool], *, quick: bool) -> Checkup:
        settings = self._settings()
        try:
            with self._visit(settings, _open_to_look) as connection:
                connection.watch(stopped, backup.STEPS)
                return checkup.check(connection, settings.binding, settings.path, quick=quick)
        except StoreCorrupt as error:
            return Checkup(findings=(Finding("pages", "the file cannot be read", 1, (error.message,)),))

    def _repair(self) -> tuple[Finding, ...]:
        with self._visit(self._settings(), connect.open_maintenance) as connection:
            return checkup.repair(connection)

    def _backup(self, path: str, stopped: Callable[[], bool], *, force: bool) -> Backup:
        settings = self._settings()
        with self._visit(settings, _open_to_look) as connection:
            return backup.backup(connection, settings, Path(path).absolute(), force=force, stopped=stopped)


def _open_to_look(settings: Settings) -> Connection:
    """Takes what it finds: the file may have none of our tables, or not be a database at all."""
    try:
        return _open(settings, "normal")
    except settings.binding.errors as error:
        if not faults.lacks_room(error):
            raise
    # No room for the index of the log, so nobody else has it open: alone, SQLite keeps it in its own memory.
    return _open(settings, "exclusive")


def _open(settings: Settings, locking: Literal["normal", "exclusive"]) -> Connection:
    connection = connect.connect(settings)
    try:
        connection.execute(f"pragma locking_mode = {locking}").fetchall()
        connection.execute("pragma wal_autocheckpoint = 0").fetchall()
        connection.execute(f"pragma synchronous = {connect.SYNCHRONOUS[settings.durability]}")
        connection.execute("pragma query_only = on")
        connection.execute("select count(*) from sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _read(connection: Connection, found: SqliteStatus) -> SqliteStatus:
    connect.check_ours(connection, found.location)
    applied = connect.applied_to(connection)
    ours = migrate.known(ENGINE)
    checksums = {migration.number: migration.checksum for migration in ours}
    page_size, pages, free = [
        connection.execute(f"pragma {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    ]
    return replace(
        found,
        schema=max(applied, default=0),
        pending=tuple([migration.name for migration in ours if migration.number not in applied]),
        changed=tuple([n for n, checksum in applied.items() if n in checksums and checksums[n] != checksum]),
        durability=connect.durability_at(connection, found.location),
        page_size=page_size,
        pages=pages,
        free_pages=free,
    )


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - as above
    except OSError:
        return 0


async def _apart(work: Callable[[Callable[[], bool]], T]) -> T:
    """In a thread of its own. A caller who is cancelled leaves when it has ended: nothing goes on behind its back."""
    stopped = threading.Event()
    task = asyncio.ensure_future(aside(lambda: work(stopped.is_set)))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # told to nobody, and so not to be complained about
        raise
