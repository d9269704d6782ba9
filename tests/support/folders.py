"""Folders whose files need not wait for a disk: a killed process does not take the disk along."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it
ROOM = 2 * 2**30
"""Bytes that have to be free in memory for the folders of a whole run."""
OF_PYTEST = "PYTEST_DEBUG_TEMPROOT"


def prefer_memory() -> None:
    """For the folders of pytest, unless somebody said where: half of what SQLite takes is waiting for a disk."""
    if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM:
        os.environ.setdefault(OF_PYTEST, str(IN_MEMORY))


@contextlib.contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place; it is removed afterwards."""
    if not os.access(IN_MEMORY, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="redrive-", dir=IN_MEMORY) as name:
        yield Path(name)
