"""How much room there is, and how much is taken. Only by name: to open a database with plain calls drops its locks."""

from __future__ import annotations

import os
import shutil
import sys


def free(path: str) -> int:
    """Bytes that the disk of this file can still take from us; 0 if there is no such file."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return 0
    # Some file systems that are not on a disk say nothing.
    return usage.free if usage.total else sys.maxsize


def give_to_owner(path: str, database: str, *, mode: int) -> None:
    """As SQLite does with its log: what root makes beside a database belongs to whoever has the database."""
    owner = os.stat(database)  # noqa: PTH116 - see above
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(path, owner.st_uid, owner.st_gid)
        os.chmod(path, mode)  # noqa: PTH101 - see above


def size(path: str) -> int:
    """In bytes; 0 if there is no such file."""
    try:
        return os.stat(path).st_size  # noqa: PTH116 - runs beside writes: no object for it
    except OSError:
        return 0
