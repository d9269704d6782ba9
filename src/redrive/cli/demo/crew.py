"""The worker processes of the demo, and the line that tells how far they are."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from redrive.app import Redrive
from redrive.cli.demo.app import environment
from redrive.cli.output import on_terminal
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
            print(f"  worker process {pid} ended by itself: nothing left to do")
            return killed
        if code > 0:
            raise CrewFailed(f"a worker process ended with {code}", hint=(place / LOG).read_text()[-2_000:])
        print(f"  worker process {pid} died ({signal.Signals(-code).name}); starting another one")
    raise CrewFailed(f"{MOST_PROCESSES} worker processes were killed, one after the other")


async def _one(url: str, place: Path) -> tuple[int, int]:
    command = [sys.executable, "-m", "redrive", "worker", "run", "redrive.cli.demo.app:app", "--until-idle"]
    with (place / LOG).open("a") as log:
        worker = subprocess.Popen(command, cwd=place, env=os.environ | environment(url, place), stderr=log)
    try:
        async with Redrive(url, log=False) as app:
            while worker.poll() is None:
                await _progress(app)
                await asyncio.sleep(LOOK_EVERY)
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
        _erase()
    return worker.returncode, worker.pid


async def _progress(app: Redrive) -> None:
    """One line that is drawn over and over; where nobody looks, none."""
    if not on_terminal():
        return
    queues = (await app.tally()).queues
    done, dead = sum(row.done for row in queues), sum(row.open for row in queues)
    ready, running = sum(row.ready for row in queues), sum(row.leased for row in queues)
    total = done + dead + ready + running
    bar = "#" * (20 * (done + dead) // max(1, total))
    print(f"\r  [{bar:<20}] {done} done, {running} running, {ready} waiting, {dead} dead  ", end="", flush=True)


def _erase() -> None:
    if on_terminal():
        print("\r" + " " * 70 + "\r", end="", flush=True)
