"""One run of pytest, with all its workers: which folder it has, and whose end is its end.

The first process, which is the controller where xdist has one, names the run in its environment. Workers inherit it,
and so does everything that tests start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import held
from tests.support.folders import IN_MEMORY
from tests.support.servers import guard, processes
from tests.support.servers.absent import absent

VARIABLE = "REDRIVE_TEST_RUN"
ROOM = 1 << 30
"""Less than this in memory, as in many a container, does not hold the data of a PostgreSQL under test."""


@dataclass(frozen=True)
class Run:
    folder: Path
    life: int

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """One process of the run at a time."""
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def room(self, name: str) -> Path:
        """A folder for one server. Short, for the sockets in it, and open to a server that may not be root."""
        made = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        made.chmod(0o711)
        return made


def announce() -> None:
    """Name the run by its folder, unless a process above us has done so and still lives."""
    given = os.environ.get(VARIABLE, "")
    if not given or not processes.alive(_life(given)):
        os.environ[VARIABLE] = str(_place() / f"redrive-{secrets.token_hex(4)}-{os.getpid()}")


def current() -> Run:
    """This run. Its folder is made when the first server needs it, and removed when the run is over."""
    if not hasattr(os, "pidfd_open"):
        raise absent(
            "server", "they are started on Linux only; REDRIVE_TEST_POSTGRES and REDRIVE_TEST_REDIS name others"
        )
    announce()
    name = os.environ[VARIABLE]
    run = Run(Path(name), _life(name))
    with contextlib.suppress(FileExistsError):
        run.folder.mkdir()
        run.folder.chmod(0o711)
        with held.lasting():
            guard.launch(guard.Order(run.life, remove=str(run.folder)))
    return run


def _life(name: str) -> int:
    return int(name.rpartition("-")[2])


def _place() -> Path:
    """In memory where there is room: a killed server does not take the machine along, so fsync may be free."""
    if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ROOM:
        return IN_MEMORY
    return Path(tempfile.gettempdir())
