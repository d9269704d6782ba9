"""Files that are complete or absent: written under a temporary name, synced to disk, and then renamed."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from redrive.errors import ConfigError, Conflict


def check_new_file(path: Path, *, force: bool) -> None:
    """Raises ConfigError if it cannot be a file, Conflict for one that exists, unless `force`."""
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "not a regular file"
        raise ConfigError(f"{path} is {kind}", field="FILE", hint="name a file")
    if not path.parent.is_dir():
        hint = "make the folder first, or name another place"
        raise ConfigError(f"{path} cannot be written: there is no such folder", field="FILE", hint=hint)
    if path.exists() and not force:
        raise Conflict(f"there is a file {path} already", hint="use another name, or --force")


@contextmanager
def complete_file(path: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """The file exists when the block has ended; if it raises, nothing is left. Raises FileExistsError for a file that
    exists, unless `force`, which replaces it and keeps its mode.
    """
    if not force and path.exists():
        raise FileExistsError
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            if path.exists():
                os.fchmod(out.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield out
            out.flush()
            os.fsync(out.fileno())
        if not force:
            # A link fails if the name was taken meanwhile; some file systems have no links.
            try:
                os.link(name, path)
            except FileExistsError:
                raise
            except OSError:
                force = True
        if force:
            Path(name).replace(path)
    finally:
        with suppress(OSError):
            Path(name).unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
