"""The line between a supervisor and a worker process: a pair of sockets, over which go a few lines of JSON.

The worker says once which files it was loaded from, and once that it is ready. The supervisor says which processes died
and how, for it has no store to note that in. The end of the line means that the other process is gone.
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
from redrive.errors import StoreError

TOLD_LIMIT = 1024 * 1024
SITE = ("site-packages", "dist-packages")


class ChildLine:
    """The worker's end."""

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._writer: asyncio.StreamWriter | None = None
        # Processes that handlers start must not hold it.
        self._socket.set_inheritable(False)
        # A shell that stops background jobs which write to its terminal must not stop us: we are no job of its.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def loaded_from(self, files: list[str]) -> None:
        self._say({"files": files})

    def ready(self) -> None:
        self._say({"ready": True})

    async def catch_up(self, app: Redrive) -> None:
        """Note deaths that were told before this process could hear them: before it takes over what those held."""
        with suppress(BlockingIOError):
            for words in self._socket.recv(TOLD_LIMIT, socket.MSG_DONTWAIT).splitlines():
                await self._note(app, words)

    async def attend(self, app: Redrive) -> None:
        """Note deaths in the app's store, until the supervisor is gone."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        with suppress(OSError):
            while words := await reader.readline():
                await self._note(app, words)

    async def _note(self, app: Redrive, words: bytes) -> None:
        said = json.loads(words)
        # It is evidence only, and a store that is away has worse to tell.
        with suppress(StoreError):
            await app.report_death(said["died"], why=said["why"])

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
