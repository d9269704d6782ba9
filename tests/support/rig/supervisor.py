"""One worker process, watched, killed at its limits, and started again: what an init system or Kubernetes does.

It knows why the process died and tells redrive. Restarts come ever more slowly, so that poison makes no storm of them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from redrive import exponential
from tests.support.rig.fleet import Fleet, Member

MIB = 1024 * 1024
PAUSES = exponential("20ms", factor=2, cap="1s")
PAGE = os.sysconf("SC_PAGE_SIZE")

Report = Callable[[int, str], Awaitable[object]]


@dataclass(frozen=True)
class Limits:
    memory: int = 200 * MIB
    descriptors: int = 100
    still: int = 150  # looks without a pulse; a supervisor that is starved itself looks less often


@dataclass(frozen=True)
class Death:
    pid: int
    why: str
    at: float


class Supervisor:
    def __init__(self, fleet: Fleet, report: Report, limits: Limits) -> None:
        self._fleet = fleet
        self._report = report
        self._limits = limits
        self._member: Member | None = None
        self._pulse = -1
        self._looks = 0
        self.starts: list[float] = []
        self.deaths: list[Death] = []

    async def look(self) -> None:
        """To be called again and again."""
        if self._member is None:
            if time.monotonic() >= self.may_start_at(len(self.deaths)):
                self._start()
        elif not self._member.alive:
            await self._bury(self._member, how_it_ended(self._member.process.returncode))
        elif excess := self._excess(self._member):
            self._member.process.kill()
            await self._bury(self._member, f"killed by SIGKILL: {excess}")

    def may_start_at(self, deaths: int) -> float:
        """The earliest moment for the start after so many deaths."""
        return self.deaths[deaths - 1].at + (PAUSES.delay(deaths, 0.5) or 0) / 1000 if deaths else 0.0

    def _start(self) -> None:
        self.starts.append(time.monotonic())
        self._member = self._fleet.start()
        self._pulse, self._looks = -1, 0

    async def _bury(self, member: Member, why: str) -> None:
        self._fleet.bury(member)
        self._member = None
        self.deaths.append(Death(member.pid, why, time.monotonic()))
        # Before it is started again: what the dead one held is brought back by its successor, who wants to know why.
        await self._report(member.pid, why)

    def _excess(self, member: Member) -> str:
        """The limit that the process is beyond, or nothing."""
        limits = self._limits
        if resident(member.pid) > limits.memory:
            return f"over the memory limit of {limits.memory // MIB} MiB"
        if descriptors(member.pid) >= limits.descriptors:
            return f"out of file descriptors ({limits.descriptors} of {limits.descriptors})"
        pulse = member.pulse
        self._looks = self._looks + 1 if member.ready and pulse == self._pulse else 0
        self._pulse = pulse
        return "it stood still, its event loop was blocked" if self._looks > limits.still else ""


def how_it_ended(code: int | None) -> str:
    assert code is not None
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0  # it has just died


def descriptors(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return 0  # it has just died
