"""How large SQLite's write-ahead log becomes: under steady work, and after a reader that kept it from being cut."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.growth import BATCH, BATCHES, FEW, Side
from bench.harness import Child
from bench.lab import Lab, Reading

STEADY = 4.0
"""Seconds of work until the log has its usual size, and again after the reader."""
AT_MOST = 4.0


def wal(lab: Lab) -> list[Reading]:
    url = lab.engine.waiting("log", FEW)
    steady, during, after = asyncio.run(_work(url, lab.reader))
    lab.engine.drop("log")
    against = "steady work"
    return [
        Reading(f"log after a reader of {lab.reader:g} s", after, "MB", against, steady, at_most=AT_MOST),
        Reading(f"log during a reader of {lab.reader:g} s", during, "MB", against, steady),
    ]


async def _work(url: str, reader: float) -> tuple[float, float, float]:
    """The largest log of steady work, that under the reader, and what it comes back to."""
    path = Path(url.removeprefix("sqlite:///"))
    async with Side("log", url) as side:
        steady = await _for(side, path, STEADY)
        with Child("reader", path.parent, {"url": url}) as child:
            child.line(20.0)
            during = await _for(side, path, reader)
        await _for(side, path, STEADY)
        after = _size(path)
    return steady, during, after


async def _for(side: Side, path: Path, seconds: float) -> float:
    """Put, lease and settle for so long; the largest the log was."""
    end, largest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        for _ in range(BATCHES):
            await side.finish()
            await side.put(BATCH)
        largest = max(largest, _size(path))
    return largest


def _size(path: Path) -> float:
    return path.with_name(path.name + "-wal").stat().st_size / 1e6
