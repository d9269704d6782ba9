"""R4 random worker kills. Workers crash at random store calls: nothing lost, nothing stuck, every duplicate explained.

With real kills: proofs/test_r04_kills.py.
"""

from __future__ import annotations

import random

import pytest

from redrive.core.item import Ending
from redrive.core.states import State
from tests.support.lab import Lab
from tests.support.rig import records as r
from tests.support.rig.inside import Client, Process, Worker, judged
from tests.support.rig.scenario import QUEUES, drain

KILLS = {"memory": 10, "sqlite": 5, "postgres": 5, "redis": 5}
WORKERS = 3
WITHIN = 6
"""A worker dies before or after one of its settles: so many points after its start at most."""
BURSTS = 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_r4_workers_that_crash_at_random_lose_nothing(lab: Lab, seed: int) -> None:
    dice = random.Random(seed)
    history: list[r.Record] = []
    client = Client(lab, history, *QUEUES)
    workers: list[Worker] = []
    kills, wanted = 0, KILLS[lab.kind]
    for burst in range(BURSTS):
        while len(workers) < WORKERS:
            workers.append(Worker(lab, history, counted=("settle",)))
            if kills + len(workers) <= wanted:
                workers[-1].process.crash_at(dice.randint(1, WITHIN))
        await client.enqueue(*((queue, f"item-{burst}-{number}") for number, queue in enumerate(QUEUES)))
        await lab.pass_time("1s")
        for worker in [each for each in workers if each.dead]:
            await worker.buried()
            workers.remove(worker)
            kills += 1
        if kills == wanted:
            break
    assert kills == wanted
    for worker in workers:
        await worker.stop()
    lab.clock.advance("1h")
    assert await lab.drive(drain(Process(lab, history), lab.shared, lab.clock)) == {}
    found = await judged(lab, history)
    for final in found.finals.values():
        assert final.item.state is (State.DEAD if final.item.queue == "doomed" else State.DONE)
    endings = [attempt.ending for final in found.finals.values() for attempt in final.attempts]
    assert endings.count(Ending.CRASHED) > 0, "no crash ever met an item"
