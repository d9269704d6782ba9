"""R6: the server dies under load, is restarted in good order, and is away for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tests.support.links.sizes import Deaths
from tests.support.links.works import SOME, Setting, Works, at_work, cpu_seconds, spend
from tests.support.rig.patience import eventually
from tests.support.rig.survey import Survey
from tests.support.rig.verdict import Verdict

SETTLING = 0.5
"""Seconds after which whatever ran when the server went has ended: from then on the workers are idle."""
WINDOW = 2.0
"""Seconds over which a pace is taken."""
BACK = 0.8
"""The pace that must be reached again, of that before."""


class Server(Protocol):
    """What the servers of tests/support/servers can do."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


@dataclass
class Report:
    """Seconds from the return of the server to the next work, after each blow; and of the outage, what it cost."""

    recoveries: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of each worker during the outage, as a share of one core
    pace_before: float = 0.0
    pace_back_after: float | None = None
    verdict: Verdict = field(default_factory=Verdict)
    survey: Survey = field(default_factory=Survey)

    def __str__(self) -> str:
        recoveries = ", ".join(f"{seconds:.2f}" for seconds in self.recoveries)
        cpu = ", ".join(f"{share:.1%}" for share in self.cpu)
        pace = f"pace {self.pace_before:.0f}/s before, back after {self.pace_back_after} s"
        return f"{self.verdict.report()}\nwork again after {recoveries} s; {pace}; CPU of idle workers {cpu}"


async def server_dies(server: Server, setting: Setting, size: Deaths, *, frozen: bool = False) -> Report:
    """`frozen`: in the outage the server stands still instead of being gone."""
    report = Report()
    async with at_work(setting) as works:
        if size.backlog:
            await works.backlog(size.backlog)
        async with works.clients():
            for _ in range(size.kills):
                await works.progress(SOME, limit=size.limit, what="work before the kill")
                await asyncio.to_thread(server.kill)
                await _returns(works, report, server.start)
            await asyncio.to_thread(server.stop)
            await _returns(works, report, server.start)
            if size.backlog:
                report.pace_before = await _pace(works)
            await _outage(works, report, server, size.outage, frozen=frozen)
            if size.backlog:
                report.pace_back_after = await _until_pace(works, BACK * report.pace_before)
        await works.drained()
        report.verdict, report.survey = await works.verdict()
    return report


async def _outage(works: Works, report: Report, server: Server, seconds: float, *, frozen: bool) -> None:
    gone, back = (server.pause, server.resume) if frozen else (server.kill, server.start)
    await works.progress(SOME, limit=works.setting.limit, what="work before the outage")
    await asyncio.to_thread(gone)
    await spend(SETTLING)
    pids = [member.pid for member in works.fleet.members]
    began, used = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    await spend(seconds)
    took = time.monotonic() - began
    report.cpu = [(cpu_seconds(pid) - before) / took for pid, before in zip(pids, used, strict=True)]
    works.fleet.check()
    await _returns(works, report, back)


async def _returns(works: Works, report: Report, start: Callable[[], None]) -> None:
    await asyncio.to_thread(start)
    report.recoveries.append(await works.progress(SOME, limit=works.setting.limit, what="work after the return"))


async def _pace(works: Works) -> float:
    before, began = works.runs(), time.monotonic()
    await spend(WINDOW)
    return (works.runs() - before) / (time.monotonic() - began)


async def _until_pace(works: Works, wanted: float) -> float:
    """How long it took to be at this pace again."""
    began = time.monotonic()

    async def reached() -> bool:
        return await _pace(works) >= wanted

    await eventually(reached, limit=works.setting.limit, what=f"{wanted:.0f} handlers a second again")
    return time.monotonic() - began
