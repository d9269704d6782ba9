"""A server process of our own: start, stop, kill, pause, and start again at the same address with the same data."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from tests.support.held import State, lasting
from tests.support.servers import guard, processes, run

HOST = "127.0.0.1"
START_LIMIT = 90.0
"""Seconds, as all limits here: against what hangs, not against a busy machine."""
STOP_LIMIT = 60.0
POLL = 0.005
PORT_TRIES = 20
TAKEN = "Address already in use"

Setting = str | int | bool


class ServerFailed(AssertionError):
    """A server that is there does not start or stop. Never a reason to skip."""


class Server:
    """What PostgreSQL and Redis have in common. `life` is the process with which the server has to end."""

    kind: str
    stop_signal: signal.Signals
    """For a quick end that leaves nothing behind."""

    def __init__(self, folder: Path, life: int | None = None) -> None:
        self.folder = folder
        self.port = 0
        self.pid: int | None = None
        self._life = life or os.getpid()
        self._guard: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"
        self._since = 0
        self._shared = State.depth > 0

    # -- what each kind has to say -------------------------------------------------------------------------------

    def _order(self) -> guard.Order:
        raise NotImplementedError

    def _ready(self) -> bool:
        raise NotImplementedError

    # -- life and death ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Returns when it answers. The first start finds a port, which is kept from then on."""
        if self._guard is not None and self._guard.poll() is not None:
            self.pid = self._guard = None  # it ended by itself
        assert self.pid is None, f"this {self.kind} runs already"
        tries = 1 if self.port else PORT_TRIES
        for _ in range(tries):
            self.port = self.port if tries == 1 else free_port()
            self._since = self._log.stat().st_size if self._log.exists() else 0
            if self._start_here():
                return
            if TAKEN not in self._said() or tries == 1:
                raise ServerFailed(f"{self.kind} did not start on port {self.port}:\n{self._said()[-2000:]}")
        raise ServerFailed(f"{self.kind} found no free port in {tries} tries")

    def stop(self) -> None:
        """As an administrator would: what is under way ends, and all is written."""
        raise NotImplementedError

    def kill(self) -> None:
        """SIGKILL for all its processes at one moment; returns when all are gone."""
        processes.annihilate(self._running())
        self._ended()

    def pause(self) -> None:
        """It stands still. Connections are still accepted by the kernel, and nobody answers: a black hole."""
        processes.freeze(self._running())

    def resume(self) -> None:
        processes.thaw(self._running())

    def close(self) -> None:
        """The end, in whatever state it is."""
        if self.pid is not None:
            processes.send(self.pid, self.stop_signal)
            processes.thaw(self.pid)
            self._ended()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _said(self) -> str:
        """Since the last start."""
        return self._log.read_bytes()[self._since :].decode(errors="replace")

    def _running(self) -> int:
        assert self.pid is not None, f"this {self.kind} does not run"
        return self.pid

    def _start_here(self) -> bool:
        # A test may start a server again that it shares with others.
        with lasting() if self._shared else contextlib.nullcontext():
            self._guard, self.pid = guard.launch(self._order())
        guarding = self._guard
        try:
            wait_until(lambda: self._ready() or guarding.poll() is not None, f"a {self.kind} that answers")
        except BaseException:
            self.close()
            raise
        if guarding.poll() is not None:
            self.pid = self._guard = None
            return False
        return True

    def _signal_and_wait(self, what: signal.Signals) -> None:
        processes.send(self._running(), what)
        self._ended()

    def _ended(self) -> None:
        """The guard ends after its server."""
        assert self._guard is not None
        try:
            self._guard.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self.kind} does not end within {STOP_LIMIT} s:\n{self._said()[-2000:]}") from None
        self.pid = self._guard = None


def wait_until(check: Callable[[], bool], what: str, limit: float = START_LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not check():
        if time.monotonic() > deadline:
            raise ServerFailed(f"not within {limit} s: {what}")
        time.sleep(POLL)  # noqa: TID251 - another process needs real time


def free_port() -> int:
    """Never one that the kernel gives to clients.

    A client that tries again and again to reach a server that is down could otherwise be given the server's own port,
    be connected with itself, and keep the server from coming back.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    taken = run.current().folder
    while True:
        port = random.SystemRandom().randrange(max(lowest - 12_000, 1024), lowest)
        with contextlib.suppress(FileExistsError, OSError), socket.socket() as probe:
            # Nobody else of this run gets it, also while our server is down.
            probe.bind((HOST, port))
            (taken / f"port-{port}").touch(exist_ok=False)
            return port


def with_options(url: str, options: dict[str, str]) -> str:
    if not options:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}"


@contextlib.contextmanager
def running(server: Server) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.close()
