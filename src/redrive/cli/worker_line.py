"""The line between a supervisor and a worker process: a pair of sockets, over which only the worker speaks.

It says once which files it was loaded from, and once that it is ready. Silence means nothing; the end of the line means
that the other process is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from redrive.app import Redrive
from redrive.cli.worker_logs import logger
from redrive.errors import StoreError

SITE = ("site-packages", "dist-packages")


class ChildLine:
    """The worker's end. `died`: the process in whose place this one was started, and why that ended."""

    def __init__(self, number: int, died: str | None = None) -> None:
        self._socket = socket.socket(fileno=number)
        # Processes that handlers start must not hold it.
        self._socket.set_inheritable(False)
        self._died = died
        # A shell that stops background jobs which write to its terminal must not stop us: we are no job of its.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def loaded_from(self, files: list[str]) -> None:
        self._say({"files": files})

    def ready(self) -> None:
        self._say({"ready": True})

    async def attend(self, app: Redrive) -> None:
        """From now on a supervisor that is gone ends this worker in good order."""
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._heard)
        if self._died:
            pid, _, why = self._died.partition(" ")
            # It is evidence only: a store that is away just now must not keep the worker from starting.
            with suppress(StoreError):
                await app.report_death(int(pid), why=why)

    def _heard(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        logger.warning("the supervisor is gone")
        os.kill(os.getpid(), signal.SIGTERM)

    def _say(self, what: dict[str, object]) -> None:
        with suppress(OSError):
            self._socket.sendall(f"{json.dumps(what)}\n".encode())


def own_files() -> list[str]:
    """Those of the modules that are loaded, without Python's, installed packages' and our own."""
    homes = tuple(f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("stdlib", "platstdlib"))
    ours = f"{Path(__file__).parent.parent}{os.sep}"
    found = {getattr(module, "__file__", None) for module in tuple(sys.modules.values())}
    files = sorted(os.path.realpath(file) for file in found if isinstance(file, str))
    return [file for file in files if not file.startswith((*homes, ours)) and not set(SITE) & set(Path(file).parts)]
