"""Kinds of disk trouble that begin and end: on our own disk, on a small one in memory, and by a limit on file sizes."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from tests.support.disk import kernel
from tests.support.disk.disk import Disk

MEMORY = 32 * 1024 * 1024


class Trouble:
    """`folder` is where the database lies; `disk` is what the power can be cut from."""

    disk: Disk | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class FullDisk(Trouble):
    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.folder)
        self.disk: Disk = disk

    def begin(self) -> None:
        self.disk.fill(0)

    def end(self) -> None:
        self.disk.fill(None)


class ReadOnlyDisk(FullDisk):
    """As a file system does it to itself after an error: files that are open stay open, and nothing can be written."""

    def begin(self) -> None:
        self.disk.read_only(True)

    def end(self) -> None:
        self.disk.read_only(False)


class FullMemory(Trouble):
    """A tmpfs with a file that takes all the room there is."""

    def begin(self) -> None:
        with self._filler.open("wb", buffering=0) as filler:
            for size in (65_536, 4_096, 1):
                try:
                    while filler.write(bytes(size)):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def end(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"


class SizeLimit(Trouble):
    """No file of this process may grow: the nearest thing to a full disk that everybody may bring about."""

    def begin(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        largest = max(entry.stat().st_size for entry in os.scandir(self.folder) if entry.is_file())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))

    def end(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextlib.contextmanager
def prepared(kind: str, folder: Path) -> Iterator[Trouble]:
    """`full`, `read-only`: our own disk. `memory`: a tmpfs. `limit`: wherever the folder is."""
    place = folder / "place"
    place.mkdir()
    if kind == "limit":
        yield SizeLimit(place)
        return
    kernel.private_mounts()
    if kind == "memory":
        kernel.mount_memory(place, MEMORY)
        yield FullMemory(place)
        return
    with Disk(place) as disk:
        yield FullDisk(disk) if kind == "full" else ReadOnlyDisk(disk)
