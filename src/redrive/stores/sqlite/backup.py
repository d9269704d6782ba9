"""`backup` on SQLite: the whole database as it was at one moment, in one file, while everything goes on.

The copy grows under a name of its own beside the one it is meant for, is checked, brought to the disk, and only then
gets its name. Until then there is nothing that could be taken for a backup.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redrive.core.verbs import Backup
from redrive.errors import ConfigError, Conflict, StoreError, StoreForbidden, StoreFull, StoreUnavailable
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.binding import Connection
from redrive.stores.sqlite.connect import Settings, check_ours, connect

PAGES = 1000
"""Copied between two looks at whether somebody wants it to end."""
STEPS = 100_000
"""Of SQLite between the same looks: some milliseconds."""
BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by the endings of their names."""
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Stopped(StoreUnavailable):
    """Nobody waits for it any more."""


def backup(source: Connection, settings: Settings, to: Path, *, force: bool, stopped: Callable[[], bool]) -> Backup:
    """The source must not be inside a transaction."""
    begun = time.monotonic()
    check_ours(source, settings.path)
    with _on_the_way(to, settings.path):
        _check_target(to, Path(settings.path), force=force)
        half = Path(f"{to}.{secrets.token_hex(4)}.part")
        try:
            _copy(source, settings, half, stopped)
            _check_copy(settings, half, stopped)
            size = _to_disk(half)
            _give_name(half, to, force=force)
        finally:
            for ending in ("", *BESIDE):
                with suppress(OSError):
                    Path(f"{half}{ending}").unlink(missing_ok=True)
        _sync_folder(to.parent)
    return Backup(str(to), size, int((time.monotonic() - begun) * 1000))


def _check_target(to: Path, path: Path, *, force: bool) -> None:
    if not to.parent.is_dir():
        raise ConfigError(f"there is no folder {to.parent}", field="path", hint="make it first, or name another one")
    ours = {os.path.realpath(f"{path}{ending}") for ending in ("", *BESIDE, "-wake", "-ballast")}
    if os.path.realpath(to) in ours or (to.exists() and to.samefile(path)):
        raise ConfigError(f"{to} belongs to the database itself", field="path", hint="name another file")
    left = [beside for ending in BESIDE if (beside := Path(f"{to}{ending}")).exists()]
    if left:
        # SQLite would take it for the log of the copy, and write it over the copy when that is opened.
        hint = "somebody has that database open, or was killed with it open; name another file"
        raise Conflict(f"{left[0]} lies beside it and belongs to another database", hint=hint)
    _check_free(to, force=force)


def _check_free(to: Path, *, force: bool) -> None:
    try:
        found = to.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{to} is there and is not a plain file", field="path", hint="name another one")
    if not force:
        raise Conflict(
            f"{to} is there already; nothing was copied",
            hint="name another file, or replace it by --force (force=True)",
        )


def _copy(source: Connection, settings: Settings, half: Path, stopped: Callable[[], bool]) -> None:
    def go_on() -> None:
        if stopped():
            raise Stopped("the backup was ended before it was whole", hint="repeat it")

    source.execute("begin")
    try:
        (pages,) = source.execute("pragma page_count").fetchone()
        (size,) = source.execute("pragma page_size").fetchone()
        _check_room(half.parent, pages * size)
        _create(half, like=settings.path)
        source.copy_to(str(half), PAGES, go_on)
    finally:
        if source.in_transaction:
            source.execute("rollback")


def _check_room(folder: Path, size: int) -> None:
    """Before anything is written: a disk filled by the copy would stop the work as well."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise _no_room(folder, f"it needs {size:,} bytes and {free:,} are free")


def _no_room(folder: Path, why: str) -> StoreFull:
    return StoreFull(
        f"no space left for a backup in {folder}: {why}", hint="free some space there or name another disk"
    )


def _create(half: Path, like: str) -> None:
    """Readable by nobody who cannot read the database."""
    mode = stat.S_IMODE(os.stat(like).st_mode)  # noqa: PTH116 - never opened here: closing it would drop SQLite's locks
    os.close(os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def _check_copy(settings: Settings, half: Path, stopped: Callable[[], bool]) -> None:
    copy = connect(Settings(str(half), settings.durability, settings.busy_timeout, settings.binding))
    copy.watch(stopped, STEPS)
    try:
        # Alone, it needs no memory to share, which a disk for backups may not offer.
        copy.execute("pragma locking_mode = exclusive").fetchall()
        (said,) = copy.execute("pragma quick_check(1)").fetchone()
    finally:
        copy.close()
    if said != "ok":
        raise faults.damaged(f"{settings.path} is damaged, and so would be the copy: {said}")


def _to_disk(half: Path) -> int:
    _sync(half)
    return half.stat().st_size


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Some file systems cannot, network ones above all; then this is as sure as it gets there."""
    try:
        _sync(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise


def _give_name(half: Path, to: Path, *, force: bool) -> None:
    _check_free(to, force=force)
    half.replace(to)


@contextmanager
def _on_the_way(to: Path, source: str) -> Iterator[None]:
    """What goes wrong there is not the database's fault, and should not sound so."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _no_room(to.parent, str(error.strerror)) from error
        kind: type[StoreError] = StoreForbidden if error.errno in _FORBIDDEN else StoreUnavailable
        raise kind(f"{to} cannot be written: {error.strerror}", hint="name another file or folder") from error
    except Exception as error:
        if faults.is_database_error(error) and faults.lacks_room(error):
            raise _no_room(to.parent, "the disk takes no more") from error
        told = faults.translate(error, source if faults.is_damage(error) else str(to))
        if told is error:
            raise
        raise told from error
