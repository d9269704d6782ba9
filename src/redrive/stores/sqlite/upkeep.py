"""What an operator does with the database itself.

It needs no open store, and so also serves one that cannot be opened: too new, too old, damaged, on a full disk. Each
act has a connection and a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from redrive.core.item import Instant, Millis
from redrive.core.verbs import Backup, Checkup, Finding
from redrive.errors import ConfigError, StoreCorrupt, StoreError, StoreUnavailable, UnsafeFileSystem
from redrive.stores import migrate
from redrive.stores.aside import aside
from redrive.stores.migrate import Migration
from redrive.stores.sqlite import backup, checkup, connect, faults, ground
from redrive.stores.sqlite.binding import BindingName, Connection, choose, claimed, is_risky
from redrive.stores.sqlite.connect import ENGINE, Durability, Settings
from redrive.stores.sqlite.forks import connected
from redrive.stores.sqlite.ground import Network

T = TypeVar("T")


class DatabaseStatus(Struct, frozen=True):
    """The file as it stands. `trouble`: why SQLite would not read it; then `schema` and the pages are not known."""

    location: str
    binding: str
    version: str
    risky: bool
    file_system: str
    """As the system names it; empty where it does not say."""
    size: int
    log_size: int
    ballast_size: int
    known: int
    schema: int = 0
    pending: tuple[str, ...] = ()
    changed: tuple[int, ...] = ()
    """Migrations that were applied with other contents than this redrive has."""
    durability: Literal["power-loss", "process-crash", "none"] = "none"
    page_size: int = 0
    pages: int = 0
    free_pages: int = 0
    trouble: str = ""


class Upkeep:
    def __init__(
        self, path: str, durability: Durability, busy_timeout: Millis, binding: BindingName, network: Network
    ) -> None:
        self._path = path
        self._durability = durability
        self._busy_timeout = busy_timeout
        self._binding = binding
        self._network = network

    async def status(self) -> DatabaseStatus:
        """Changes nothing, and makes no file. StoreUnavailable if there is none."""
        return await _apart(lambda _: self._status())

    async def pending(self) -> tuple[Migration, ...]:
        """What `migrate` would apply."""
        return await _apart(lambda _: self._pending())

    async def migrate(self, now: Instant) -> tuple[int, ...]:
        """The numbers of the migrations that were applied."""
        return await _apart(lambda _: self._migrate(now))

    async def check(self, *, quick: bool) -> Checkup:
        return await _apart(lambda stopped: self._check(stopped, quick=quick))

    async def repair(self) -> tuple[Finding, ...]:
        """What was wrong in the counters and is not any more."""
        return await _apart(lambda _: self._repair())

    async def backup(self, path: str, *, force: bool) -> Backup:
        if not path or "\0" in path:
            raise ConfigError(f"{path!r} names no file", field="path")
        return await _apart(lambda stopped: self._backup(path, stopped, force=force))

    def _settings(self) -> Settings:
        path = str(Path(self._path).absolute())
        try:
            there = os.stat(path).st_size > 0  # noqa: PTH116 - never opened here: closing it would drop SQLite's locks
        except OSError as error:
            raise StoreUnavailable(f"no database at {path}: {error.strerror}") from error
        if not there:
            raise StoreUnavailable(f"no database at {path}: the file is empty")
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

    def _status(self) -> DatabaseStatus:
        settings = self._settings()
        binding = settings.binding
        real = os.path.realpath(settings.path)
        found = DatabaseStatus(
            settings.path,
            binding.name,
            binding.version,
            is_risky(binding),
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


def _read(connection: Connection, found: DatabaseStatus) -> DatabaseStatus:
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
