"""Opening the file: is it ours, is it sound, and is it as durable as we say. Runs in threads, never in the loop."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from typing import Literal

from redrive.core.item import Instant, Millis
from redrive.core.select import glob_match
from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores import migrate
from redrive.stores.sqlite import faults, ground
from redrive.stores.sqlite.binding import STDLIB, Binding, Connection
from redrive.stores.sqlite.boot import expire_earlier_leases
from redrive.stores.sqlite.compile import GLOB
from redrive.stores.statements import load

ENGINE = "sqlite"
Durability = Literal["power-loss", "process-crash"]

WAL_KEPT = 64 * 1024 * 1024
"""The write-ahead log is cut back to this after something (a long reader) made it grow beyond."""

CACHE = 4_000
"""KiB of pages per connection. More was measured to buy nothing: what is not here is in the system's cache."""

_CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EPERM}
SYNCHRONOUS = {"power-loss": 2, "process-crash": 1}
_SQL = load(ENGINE, "open")


@dataclass(frozen=True)
class Settings:
    path: str
    durability: Durability
    busy_timeout: Millis
    binding: Binding = STDLIB
    ballast: int = 0
    """Its size in bytes; 0 is none."""


def connect(settings: Settings) -> Connection:
    connection = settings.binding.connect(settings.path, settings.busy_timeout)
    connection.add_function(GLOB, 2, _glob)
    return connection


def _glob(pattern: str, text: str | None) -> bool | None:
    return None if text is None else glob_match(pattern, text)


def open_writer(settings: Settings, now: Instant, *, first: bool = True) -> Connection:
    """A connection to a database that is ours, in WAL mode and at our schema. `first`: nobody else has it open."""
    connection = connect(settings)
    try:
        check_ours(connection, settings.path)
        _into_wal(connection, settings)
        _set_up(connection, settings)
        _check_durability(connection, settings)
        empty_log(connection, settings, rewrite=first)
        _migrate(connection, settings.path, now)
        _sync_folder(settings.path)
    except BaseException:
        connection.close()
        raise
    return connection


def reopen_writer(settings: Settings) -> Connection:
    connection = connect(settings)
    try:
        _set_up(connection, settings)
        # Touches the file, so that a disk which still fails is met here and not in somebody's write.
        connection.execute("select count(*) from redrive_migration").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(settings: Settings) -> Connection:
    connection = connect(settings)
    connection.execute("pragma wal_autocheckpoint = 0")
    connection.execute("pragma query_only = on")
    # Opens the log too, now: later there may be no file descriptor left, and a worker that cannot look takes nothing.
    connection.execute("select count(*) from redrive_migration").fetchone()
    return connection


def open_maintenance(settings: Settings) -> Connection:
    """For checkpoints: syncs as the writer does, and is never in anybody's way."""
    connection = connect(settings)
    try:
        _set_up(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def durability_of(connection: Connection) -> Literal["power-loss", "process-crash", "none"]:
    """What is really in force, not what was asked for."""
    (mode,) = connection.execute("pragma journal_mode").fetchone()
    (synchronous,) = connection.execute("pragma synchronous").fetchone()
    if mode != "wal" or synchronous < 1:
        return "none"
    return "power-loss" if synchronous >= 2 else "process-crash"


def durability_at(connection: Connection, path: str) -> Literal["power-loss", "process-crash", "none"]:
    """What is really in force where the file lies: no setting makes memory survive."""
    found = durability_of(connection)
    return "process-crash" if found == "power-loss" and ground.in_memory(path) else found


def schema_of(connection: Connection) -> int:
    return int(connection.execute("select max(number) from redrive_migration").fetchone()[0])


def applied_to(connection: Connection) -> dict[int, str]:
    """Numbers and checksums of the migrations a database has; none if it has none of our tables."""
    if ("redrive_migration",) not in connection.execute(_SQL["tables"]).fetchall():
        return {}
    applied = dict(connection.execute(_SQL["applied"]).fetchall())
    if not all(isinstance(number, int) for number in applied):
        raise faults.damaged("the list of its migrations cannot be read")
    return applied


def check_ours(connection: Connection, path: str) -> None:
    """Before anything is written: a stranger's database stays as it is, down to its journal mode."""
    tables = {name for (name,) in connection.execute(_SQL["tables"])}
    if tables and "redrive_migration" not in tables:
        raise ConfigError(
            f"{path} is the database of something else (it has the table {min(tables)!r} and none of redrive's)",
            field="path",
            hint="give redrive a file of its own",
        )


def _into_wal(connection: Connection, settings: Settings) -> None:
    """SQLite does not wait for a lock here, although it waits everywhere else; so we do."""
    deadline = time.monotonic() + settings.busy_timeout / 1000
    mode = ""
    while not mode:
        try:
            # To its end, not to its first row: the pragma commits, and so may fail, only after it has answered.
            ((mode,),) = connection.execute("pragma journal_mode = wal").fetchall()
        except settings.binding.errors as error:
            if not faults.is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
    if mode != "wal":
        raise StoreUnavailable(
            f"{settings.path} cannot use a write-ahead log (it stays in {mode!r} mode)",
            hint="put the file on a local disk that this process may write to",
        )


def _set_up(connection: Connection, settings: Settings) -> None:
    """Checkpoints are the writer's own (see checkpoint.py), hence no automatic ones."""
    wanted = {
        "synchronous": SYNCHRONOUS[settings.durability],
        "foreign_keys": 1,
        "wal_autocheckpoint": 0,
        "journal_size_limit": WAL_KEPT,
        "cache_size": -CACHE,
        "temp_store": 2,
    }
    for name, value in wanted.items():
        connection.execute(f"pragma {name} = {value}")
        (found,) = connection.execute(f"pragma {name}").fetchone()
        if found != value:
            raise StoreUnavailable(f"{settings.path}: {name} is {found} although {value} was set")
    # A SQLite with statistics of values plans most statements anew for each call, which takes longer than their work.
    connection.keep_plans(keep=True)
    # Zeroing what is deleted costs writes; `fast` does it only where the page is written anyway.
    connection.execute("pragma secure_delete = fast")


def _check_durability(connection: Connection, settings: Settings) -> None:
    found = durability_of(connection)
    if found != settings.durability:
        raise StoreUnavailable(
            f"{settings.path} would survive {found}, and {settings.durability} was asked for",
            hint="put the file on a local disk that this process may write to",
        )


def empty_log(connection: Connection, settings: Settings, *, rewrite: bool) -> None:
    """Move what the log holds into the database, under the write lock, before anything new is accepted.

    A sync of the log may have failed before the last process was killed. Its pages are still in the system's memory and
    look sound, but no later sync will write them, nor anything readable behind them. `rewrite` also writes them anew:
    a foreign reader may keep the log from beginning anew, so that what comes next is appended.
    """
    maintenance = open_maintenance(settings)
    try:
        connection.execute("begin immediate")
        try:
            maintenance.execute("pragma wal_checkpoint(passive)").fetchall()
            if rewrite:
                _rewrite_log(f"{settings.path}-wal")
        finally:
            connection.execute("rollback")
    finally:
        maintenance.close()


def _rewrite_log(path: str) -> None:
    """With its own bytes: its pages are dirty then, and the sync really writes them.

    SQLite keeps no locks on the log itself, so that it may be opened and closed as a plain file.
    """
    try:
        log = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while chunk := os.pread(log, 1 << 20, offset):
            os.pwrite(log, chunk, offset)
            offset += len(chunk)
        if offset:
            os.fsync(log)
    except OSError as error:
        raise StoreUnavailable(
            f"the log {path} cannot be made durable: {error.strerror}", hint="check the disk; nothing was accepted"
        ) from error
    finally:
        os.close(log)


def _sync_folder(path: str) -> None:
    """SQLite does so too, once, for the name of a new log, but does not tell when that fails."""
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120 - a text already
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in _CANNOT_SYNC_FOLDERS:
            return
        raise StoreUnavailable(
            f"the folder of {path} cannot be synced: {error.strerror}", hint="check the disk; nothing was accepted"
        ) from error


def _migrate(connection: Connection, path: str, now: Instant) -> None:
    connection.execute("begin immediate")
    try:
        connection.execute(_SQL["create_migration"])
        applied = applied_to(connection)
        for migration in migrate.pending(ENGINE, applied, path):
            for statement in migration.statements():
                connection.execute(statement)
            connection.execute(_SQL["record"], (migration.number, migration.checksum, now))
        expire_earlier_leases(connection, now)
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
