"""Worker processes to start, kill, stop and wake. None outlives the fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.rig import records as r
from tests.support.rig.engines import writable
from tests.support.rig.log import Log, Tail, now_ns
from tests.support.rig.patience import eventually

ROOT = Path(__file__).resolve().parents[3]
START_LIMIT = 60.0
STOP_TRIES = 50


def environment() -> dict[str, str]:
    """The checkout under test, whatever else is installed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


class Member:
    """One worker process and what its handlers wrote so far."""

    def __init__(self, process: subprocess.Popen[bytes], logs: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.started: list[r.Start] = []
        self._running: dict[tuple[str, int], r.Start] = {}
        self._tail = Tail(logs / f"runs-{self.pid}.log")
        self._events = logs / f"events-{self.pid}.log"
        self._pulse = logs / f"pulse-{self.pid}"

    def look(self) -> list[r.Start]:
        """The handlers that run now, as far as the log says."""
        for record in self._tail.new():
            if isinstance(record, r.Start):
                self.started.append(record)
                self._running[record.id, record.delivery] = record
            elif isinstance(record, r.End):
                self._running.pop((record.id, record.delivery), None)
        return list(self._running.values())

    def halt(self) -> bool:
        """Returns when all its threads stand still; False if it died before."""
        os.kill(self.pid, signal.SIGSTOP)
        what = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return what is not None and what.si_code == os.CLD_STOPPED

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Its worker runs: the first line of its events says so."""
        return self._events.exists() and self._events.stat().st_size > 0

    @property
    def pulse(self) -> int:
        """Grows as long as its event loop turns."""
        return self._pulse.stat().st_size if self._pulse.exists() else 0


class Fleet:
    """All on one store."""

    def __init__(self, url: str, logs: Path, *, lease: float, handlers: str = "mix", watched: int = 0) -> None:
        self._command = [sys.executable, "-m", "tests.support.rig.worker", url, str(logs)]
        self._command += ["--lease", str(lease), "--set", handlers, "--watched", str(watched)]
        self._environment = environment()
        self._url = url
        self._logs = logs
        self._errors = logs / "stderr.txt"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = Log(logs / "nemesis.log")
        self._struck: set[int] = set()
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for member in self.members:
            if member.alive:
                member.process.kill()
            member.process.wait()
            assert member.process.stdin is not None
            member.process.stdin.close()
        self._log.close()

    def start(self) -> Member:
        with self._errors.open("ab") as errors:
            process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=errors, stderr=errors
            )
        member = Member(process, self._logs)
        self.members.append(member)
        return member

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def check(self) -> None:
        """Nobody died whom we did not kill."""
        fallen = [member.pid for member in self.members if not member.alive and member.pid not in self._struck]
        assert not fallen, f"workers {fallen} died by themselves: {self.complaints()}"

    def kill(self, member: Member) -> None:
        member.process.kill()
        self.bury(member)

    def bury(self, member: Member) -> None:
        """Its death is meant, whoever or whatever brings it about."""
        self._struck.add(member.pid)
        member.process.wait()
        # Only now: a handler may start between the decision to kill and the kill, and this is what explains its loss.
        self._log(r.Struck(member.pid, "kill", now_ns()))

    def stop(self, member: Member) -> None:
        """Not in the middle of a write where that would stop everybody."""
        for _ in range(STOP_TRIES):
            member.halt()
            if writable(self._url):
                self._log(r.Struck(member.pid, "stop", now_ns()))
                return
            member.go_on()
            # Stopped again at once, it would still have what it had.
            writable(self._url)
        raise AssertionError("the store is locked whenever the worker is stopped")

    def wake(self, member: Member) -> None:
        self._log(r.Struck(member.pid, "cont", now_ns()))
        member.go_on()

    def terminate(self, member: Member) -> None:
        self._struck.add(member.pid)
        self._log(r.Struck(member.pid, "term", now_ns()))
        member.process.terminate()

    async def retire(self, *, limit: float = 30.0) -> None:
        """SIGTERM to all that live; they must leave by themselves, and without complaint."""
        leaving = self.alive
        await eventually(
            lambda: all(member.ready for member in leaving), limit=START_LIMIT, what="workers have started"
        )
        for member in leaving:
            self.terminate(member)
        await eventually(lambda: not self.alive, limit=limit, what="workers leave after SIGTERM")
        codes = {member.pid: member.process.returncode for member in leaving}
        assert not any(codes.values()), f"exit codes {codes}: {self.complaints()}"

    def complaints(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]
