"""Folders whose files need not wait for a disk: a killed process does not take the disk along."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of our own are made in it


@contextlib.contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where there is such a place; it is removed afterwards."""
    if not os.access(IN_MEMORY, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="redrive-", dir=IN_MEMORY) as name:
        yield Path(name)
