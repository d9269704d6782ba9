"""R25 shutdown. A worker told to stop at any store call finishes or gives back what it holds, and charges nothing.

Graces and handlers that do not end: tests/engine/test_stopping.py. With real signals: proofs/test_r25_shutdown.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from redrive.core.item import Ending
from redrive.core.states import State
from redrive.testing.faults import Point
from tests.support.lab import Lab, open_lab
from tests.support.rig import records as r
from tests.support.rig.inside import Client, Process, Worker, judged
from tests.support.rig.scenario import QUEUES, drain
from tests.support.stores import STORES

ITEMS = 24
TRIED = {"memory": 1, "sqlite": 7, "postgres": 21, "redis": 21}
"""Every point in memory, some on the others: an odd step meets points before and after a write."""


async def stopped_at(lab: Lab, point: int | None) -> int:
    """How many points there are."""
    history: list[r.Record] = []
    client = Client(lab, history, *QUEUES)
    await client.enqueue(*((QUEUES[number % len(QUEUES)], f"item-{number:02}") for number in range(ITEMS)))
    worker = Worker(lab, history)
    stopping: list[asyncio.Task[None]] = []

    def stop(_: Point) -> None:
        stopping.append(asyncio.create_task(worker.app.stop(grace=5)))

    if point is not None:
        worker.process.store.crash_at(point, stop)
        await lab.until(lambda: bool(stopping))
        begun = lab.clock.monotonic()
        await lab.drive(asyncio.gather(*stopping))
        assert lab.clock.monotonic() - begun <= 7_000
    else:
        # All is done by then, and the worker waits: a longer rest has points that are all alike.
        await lab.pass_time("5s")
    await worker.stop()
    assert not any(row.leased for row in (await lab.store.tally()).queues)
    assert await lab.drive(drain(Process(lab, history), lab.shared, lab.clock)) == {}
    finals = (await judged(lab, history)).finals
    assert len(finals) >= ITEMS
    for final in finals.values():
        assert final.item.crashes == 0
        assert final.item.state is (State.DEAD if final.item.queue == "doomed" else State.DONE)
        runs = [attempt for attempt in final.attempts if attempt.ending is not Ending.RELEASED]
        assert final.item.attempt == max(1, len(runs)), "what was given back is not charged"
    return worker.process.store.points


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
async def test_r25_a_stop_at_any_point_gives_back_what_is_not_done(kind: str, tmp_path: Path) -> None:
    async with open_lab(kind, tmp_path) as lab:
        points = await stopped_at(lab, None)
    # The last points are those of its end.
    for point in range(1, points * 3 // 4, TRIED[kind]):
        async with open_lab(kind, tmp_path) as lab:
            await stopped_at(lab, point)
