"""R6 database dies. While the store is away workers wait and callers are told; afterwards all accepted work is done.

With servers that are killed: proofs/test_r06_server.py.
"""

from __future__ import annotations

import random

from redrive.core.states import State
from redrive.testing.faults import Fault
from tests.support.lab import Lab
from tests.support.rig import records as r
from tests.support.rig.inside import Client, Process, Worker, judged
from tests.support.rig.scenario import QUEUES, drain

VERBS = ("put", "lease", "settle", "extend", "reclaim", "tally", "wait", "beat", "settings")
OUTAGES = 2
CALLS = 100
"""What a worker may ask in a minute in which it can do nothing: each of its parts asks every five seconds."""


async def test_r6_an_outage_loses_nothing_and_workers_go_on_by_themselves(lab: Lab) -> None:
    dice = random.Random(6)
    history: list[r.Record] = []
    client = Client(lab, history, *QUEUES)
    workers = [Worker(lab, history) for _ in range(2)]
    stores = [client.process.store, *(worker.process.store for worker in workers)]
    for outage in range(OUTAGES):
        for store in stores:
            # Some calls are on their way when the server dies: done or not, their callers cannot know.
            for verb in ("put", "lease", "settle"):
                store.next(verb, dice.choice([Fault.UNKNOWN, Fault.UNKNOWN_UNDONE]))
        await client.enqueue(*((queue, f"item-{outage}-{number}") for number, queue in enumerate(QUEUES)))
        for store in stores:
            for verb in VERBS:
                store.fail(verb)
        await client.enqueue(("ok", f"refused-{outage}"))
        await lab.pass_time("30s")
        before = [len(store.calls) for store in stores[1:]]
        await lab.pass_time("1m")
        calls = [len(store.calls) - count for store, count in zip(stores[1:], before, strict=True)]
        assert all(0 < count <= CALLS for count in calls), calls
        for store in stores:
            store.heal()
        await lab.pass_time("10s")
        await client.enqueue(("ok", f"after-{outage}"))
        await lab.pass_time("1s")
        assert (await lab.item(f"after-{outage}")).state is State.DONE, "ten seconds are enough to notice"
    for worker in workers:
        await worker.stop()
    lab.clock.advance("1h")
    assert await lab.drive(drain(Process(lab, history), lab.shared, lab.clock)) == {}
    found = await judged(lab, history)
    for final in found.finals.values():
        assert final.item.state is (State.DEAD if final.item.queue == "doomed" else State.DONE)
    assert not any(item_id.startswith("refused") for item_id in found.finals)
