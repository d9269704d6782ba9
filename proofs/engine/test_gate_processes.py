"""Gap 12: a fleet sends one probe an interval to what is down.

Four worker processes; when the dependency is back, they finish everything.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.core.select import Match
from redrive.core.verbs import QueueTally
from redrive.stores.base import PAGE_LIMIT
from redrive.stores.url import store_from_url
from tests.support.folders import quick_folder
from tests.support.rig.patience import eventually
from tests.support.stores import fresh_store

WORKERS = 4
ITEMS = 1_000
INTERVAL = 1.0
FLOOR = 1.0
INTERVALS = 6

PROGRAM = """
import asyncio, os, sys, time
from pathlib import Path
from redrive import Item, Policy, Redrive, constant

url, down, log = sys.argv[1], Path(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = Redrive(url, log=False)
app.gate("dependency", interval="1s", longest="1s", retry_share=0.1, retry_floor="1s")

@app.handler("q", gate="dependency", policy=Policy(backoff=constant("100ms"), max_attempts=None), concurrency=10)
def ask(item: Item) -> None:
    os.write(log, f"{time.time()} {item.id} {item.errors}\\n".encode())
    if down.exists():
        raise ConnectionError("no answer")

async def main() -> None:
    async with app:
        await app.run()

asyncio.run(main())
"""


class Stage:
    """A store, the dependency (down while its file is there) and what it saw, from all processes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.down = folder / "down"
        self.log = folder / "calls"
        self.log.touch()
        self.down.touch()
        self.store = store_from_url(url)
        self.app = Redrive(self.store, log=False)
        self.app.queue("q")

    def calls(self) -> list[tuple[float, str, int]]:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return sorted((float(at), item_id, int(errors)) for at, item_id, errors in lines)

    @contextmanager
    def workers(self) -> Iterator[None]:
        command = [sys.executable, "-c", PROGRAM, self.url, str(self.down), str(self.log)]
        processes = [subprocess.Popen(command) for _ in range(WORKERS)]
        try:
            yield
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()

    async def row(self) -> QueueTally:
        (only,) = (await self.app.tally()).queues
        return only

    async def shut(self) -> bool:
        gates = await self.app.gates()
        return any(gate.state != "closed" for gate in gates) and (await self.row()).leased == 0

    async def finished(self) -> bool:
        return (await self.row()).done == ITEMS


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
async def test_a_fleet_of_processes_probes_once_an_interval_and_finishes_when_it_can(kind: str, tmp_path: Path) -> None:
    with quick_folder(tmp_path) as folder, fresh_store(kind, folder) as url:
        stage = Stage(url, folder)
        async with stage.app:
            await stage.app.enqueue_many("q", [None] * ITEMS)
            with stage.workers():
                await eventually(stage.shut, limit=30, what="the gate is open and what ran before has ended")
                await watch_probes(stage)
                stage.down.unlink()
                await eventually(stage.finished, limit=120, what="all are done")
            (gate,) = await stage.app.gates()
            assert gate.state == "closed"


async def watch_probes(stage: Stage) -> None:
    before, began = len(stage.calls()), time.time()

    def probes() -> int:
        return len(stage.calls()) - before

    await eventually(lambda: probes() >= INTERVALS, limit=60, what=f"{INTERVALS} probes")
    assert probes() <= (time.time() - began) / INTERVAL + 1, "one each interval, for all of them"
    calls = stage.calls()
    retries = sum(errors > 0 for *_, errors in calls)
    floor = (time.time() - calls[0][0]) / FLOOR + 1
    assert retries <= probes() + ITEMS // 10 + floor
    asked = {item_id for _, item_id, _ in calls}
    waiting = (await stage.store.find(Match("queue", "=", "q"), PAGE_LIMIT)).items
    untouched = [item for item in waiting if item.id not in asked]
    assert len(untouched) == ITEMS - len(asked) > 0
    assert {(item.attempt, item.deliveries) for item in untouched} == {(0, 0)}, "waiting costs nothing"
