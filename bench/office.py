"""The office in the shell: letters listed by a filter, and written to a file, as the commands do it."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import CannotMeasure
from bench.lab import Lab, Reading
from bench.load import QUEUE
from redrive import Redrive
from redrive.app.internals import store_of
from redrive.cli.export import json_lines
from redrive.office.letters import exported_pages, letters_matching

TIMES = 5
EXPORTED = 100_000
AT_LEAST = 20_000.0
AT_MOST = 300.0


def export(lab: Lab) -> list[Reading]:
    path = lab.scratch / "letters.jsonl"
    # About so many of them are open; a few were put away.
    rate = asyncio.run(_exported(lab.lettered(lab.many), min(EXPORTED, lab.many * 9 // 10), path))
    path.unlink()
    return [Reading(f"export, of {lab.many:,} letters", rate, "/s", at_least=AT_LEAST)]


async def _exported(url: str, count: int, path: Path) -> float:
    """Letters a second, from the store to the file."""
    async with Redrive(url, log=False) as app:
        with path.open("wb") as out:
            start = time.perf_counter()
            written, pages = 0, exported_pages(store_of(app), letters_matching(""))
            async for records in pages:
                out.write(json_lines(records))
                written += len(records)
                if written >= count:
                    break
            await pages.aclose()
            took = time.perf_counter() - start
    if written < count:
        raise CannotMeasure(f"{written:,} letters were exported, not {count:,}")
    return written / took


def list_filtered(lab: Lab) -> list[Reading]:
    """The whole command, from its start to its end, for filters that indexes serve."""
    url = lab.lettered(lab.many)
    texts = (f"queue:{QUEUE}", "error:KeyError", "queue:emails category:timeout", "died<1d")
    found = {text: _median(url, text) for text in texts}
    lab.facts += [{"list": text, "ms": took} for text, took in found.items()]
    slowest = max(found, key=lambda text: found[text])
    name = f"letters list, {lab.many:,} letters, slowest of {len(texts)}: {slowest}"
    return [Reading(name, found[slowest], "ms", at_most=AT_MOST)]


def _median(url: str, text: str) -> float:
    """Milliseconds."""
    command = [sys.executable, "-m", "redrive", "letters", "list", "--store", url, "--where", text, "--limit", "20"]
    times = []
    for _ in range(TIMES):
        start = time.perf_counter()
        told = subprocess.run(command, capture_output=True, check=False)
        times.append((time.perf_counter() - start) * 1000)
        if told.returncode:
            raise CannotMeasure(f"letters list ended with {told.returncode}: {told.stderr.decode()[:200]}")
    return statistics.median(times)
