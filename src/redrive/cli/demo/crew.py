"""The worker processes of the demo, and the line that tells how far they are."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from redrive.app import Redrive
from redrive.cli.demo.app import LOAD, environment
from redrive.cli.output import on_terminal, write
from redrive.errors import RedriveError

MOST_PROCESSES = 12
LOOK_EVERY = 0.2
LOG = "workers.log"


class CrewFailed(RedriveError):
    """A worker process ended in a way that is not part of the demo."""


def work(url: str, place: Path) -> int:
    """Processes, a new one whenever one is killed, until nothing is left to do. Returns how many were killed."""
    for killed in range(MOST_PROCESSES):
        code, pid = asyncio.run(_one(url, place))
        if code == 0:
            write(f"  worker process {pid} ended by itself: nothing left to do")
            return killed
        if code > 0:
            raise CrewFailed(f"a worker process ended with {code}", hint=(place / LOG).read_text()[-2_000:])
        write(f"  worker process {pid} died ({signal.Signals(-code).name}); starting another one")
    raise CrewFailed(f"{MOST_PROCESSES} worker processes were killed, one after the other")


async def _one(url: str, place: Path) -> tuple[int, int]:
    command = [sys.executable, "-m", "redrive", "worker", "run", "redrive.cli.demo.app:app", "--until-idle"]
    with (place / LOG).open("a") as log:
        worker = await asyncio.create_subprocess_exec(*command, env=os.environ | environment(url, place), stderr=log)
    looking = asyncio.create_task(_look(url))
    try:
        return await worker.wait(), worker.pid
    finally:
        looking.cancel()
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
        _draw("")


async def _look(url: str) -> None:
    """One line that is drawn over and over; where nobody looks, none."""
    if on_terminal():
        async with Redrive(url, log=False) as app:
            while True:
                _draw(await _progress(app))
                await asyncio.sleep(LOOK_EVERY)


async def _progress(app: Redrive) -> str:
    queues = [row for row in (await app.tally()).queues if row.queue in LOAD]
    done, dead = sum(row.done for row in queues), sum(row.open for row in queues)
    ready, running = sum(row.ready for row in queues), sum(row.leased for row in queues)
    bar = "#" * (20 * (done + dead) // max(1, done + dead + ready + running))
    return f"  [{bar:<20}] {done} done, {running} running, {ready} waiting, {dead} dead"


def _draw(line: str) -> None:
    if on_terminal():
        sys.stdout.write(f"\r{line:<78}\r")
        sys.stdout.flush()
