"""A Python process that has imported redrive and forks a child per program: a start costs milliseconds, not a second.

The child is as good as a new interpreter: its own arguments, environment, folder, input and output, no threads, and an
ordinary end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.support import warm_child
from tests.support.warm_child import LIMIT


class WarmPython:
    """Runs one program at a time. To be closed; it also ends when the process that made it is gone."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", warm_child.__file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._child: int | None = None

    def start(self, program: Sequence[str], *, cwd: Path, env: Mapping[str, str], streams: Sequence[int]) -> int:
        """The pid of the child. `streams`: what it has for input, output and errors."""
        request = json.dumps([list(program), str(cwd), dict(env)]).encode()
        assert len(request) < LIMIT
        self._end_child()
        socket.send_fds(self._socket, [request], list(streams))
        self._child = int(self._answer())
        return self._child

    def wait(self) -> int:
        """The exit code of the child; negative: the signal that ended it."""
        status = int(self._answer())
        self._child = None
        return status

    def run(self, *program: str, cwd: Path, env: Mapping[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
        with ExitStack() as stack:
            given, out, err = (stack.enter_context(TemporaryFile("w+")) for _ in range(3))
            given.write(text)
            given.seek(0)
            self.start(program, cwd=cwd, env=env, streams=[given.fileno(), out.fileno(), err.fileno()])
            status = self.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(program, status, out.read(), err.read())

    def _end_child(self) -> None:
        """One that a test gave up."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self.wait()

    def _answer(self) -> bytes:
        answer = self._socket.recv(64)
        assert answer, "the process that forks has ended"
        return answer

    def close(self) -> None:
        self._end_child()
        self._socket.close()
        self._process.wait()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """One for all tests of this process."""
    with closing(WarmPython()) as started:
        yield started
