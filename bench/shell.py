"""How long somebody at a shell waits: from the start of the process to its end, as a package manager installs it."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time

from bench.lab import Lab, Reading, check
from bench.load import QUEUE
from redrive import Redrive

TIMES = 15
QUEUES = 10


def version(lab: Lab) -> list[Reading]:
    return [Reading("redrive --version", _took(lab, "--version"), "ms", at_most=100.0)]


def queue_list(lab: Lab) -> list[Reading]:
    async def fill(url: str) -> None:
        async with Redrive(url, log=False) as app:
            for number in range(QUEUES):
                app.queue(f"{QUEUE}{number}")
                await app.enqueue(f"{QUEUE}{number}", number)
            check(len((await app.tally()).queues), QUEUES, "queues")

    url = lab.engine.empty("shell")
    asyncio.run(fill(url))
    took = _took(lab, "queue", "list", "--store", url)
    return [Reading(f"redrive queue list, {QUEUES} queues", took, "ms", at_most=250.0)]


def _took(lab: Lab, *args: str) -> float:
    """Milliseconds, the median. Whatever keeps Python from its compiled modules is taken away, as it is for users."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(lab.scratch / "compiled")
    times = []
    for _ in range(TIMES + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "redrive", *args], env=env, stdout=subprocess.DEVNULL, check=True)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[1:])  # the first one compiles
