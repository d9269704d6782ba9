"""A mounted disk and the switches on it, for a process that lives in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.rig.fleet import ROOT, environment

PATIENCE = 30.0
"""Seconds. Only a broken run waits so long."""
LOOK = 0.2


class Disk:
    """`folder` is the mounted disk. Everything on it is gone with this object; a cut writes down what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        command = [
            sys.executable,
            "-m",
            "tests.support.disk.serve",
            str(folder),
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        with theirs:
            self._server = subprocess.Popen(command, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()])
        self._socket = ours
        self._lines = ours.makefile("rb")
        self._answer("mounting")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()
        try:
            self._server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def leave(self) -> None:
        """In a forked child: the disk is the parent's."""
        self._lines.close()
        self._socket.close()

    def format(self, image: Path | None = None) -> None:
        """A new disk, empty or with the content of a plain folder; nobody may use the old one any more."""
        self._do("format", image=None if image is None else str(image))

    def power_off(self, *, after: int) -> None:
        """In the middle of the n-th change from now. From then on everything fails."""
        self._do("power_off", after=after)

    def wait_until_off(self, still: Callable[[], bool]) -> None:
        """Until the power goes, as long as `still` somebody works towards it."""
        self._tell("wait_until_off")
        while not select.select([self._socket], [], [], LOOK)[0]:
            assert still(), "those who were to work are gone, and the power is still on"
        self._answer("wait_until_off")

    def cut(self, seed: int, into: Path) -> Path:
        """What may be left if the power goes now, as a plain folder `into`, which must not exist yet."""
        self._do("cut", seed=seed, into=str(into))
        return into

    def fail_syncs(self, *numbers: int) -> None:
        """The n-th syncs from now fail with EIO; without numbers none does any more."""
        self._do("fail", calls="syncs", numbers=list(numbers))

    def fail_writes(self, *numbers: int) -> None:
        """The n-th writes from now fail with EIO, and nothing of them is written."""
        self._do("fail", calls="writes", numbers=list(numbers))

    def fill(self, left: int | None, *, name: str = "") -> None:
        """So many bytes can still be written; None: as many as you like. `name`: only for files that end like this."""
        self._do("fill", left=left, name=name)

    def read_only(self, on: bool) -> None:
        self._do("set", read_only=on)

    def ignore_syncs(self) -> None:
        """Report success and do nothing, as a disk that lies does."""
        self._do("set", lies=True)

    def counts(self) -> dict[str, int]:
        """`syncs`, `writes`, `failed_syncs`, `failed_writes`, and `no_room`: writes that found it full."""
        return {name: int(count) for name, count in self._do("counts").items()}

    def _do(self, what: str, **how: object) -> dict[str, Any]:
        self._tell(what, **how)
        return self._answer(what)

    def _tell(self, what: str, **how: object) -> None:
        self._socket.sendall(json.dumps({"do": what, **how}).encode() + b"\n")

    def _answer(self, what: str) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise OSError(f"{what}: the process behind the disk is gone")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer
