"""R10 poison. An item that kills its worker dies after exactly max_crashes, the last time alone; the others are done.

With eight real ways to die: proofs/test_r10_poison.py.
"""

from __future__ import annotations

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import Ending
from redrive.core.states import State
from tests.support.lab import Lab
from tests.support.rig import records as r
from tests.support.rig.handlers import Scribe
from tests.support.rig.inside import Client, Worker, judged

HEALTHY = 20
MAX_CRASHES = 3


async def test_r10_poison_dies_alone_after_exactly_max_crashes(lab: Lab) -> None:
    history: list[r.Record] = []
    worker: Worker
    beside: list[list[str]] = []

    def register(app: Redrive, scribe: Scribe) -> None:
        running: list[str] = []

        @app.handler("mixed", policy=Policy(backoff=constant("1s"), max_crashes=MAX_CRASHES), concurrency=10)
        async def handle(item: Item) -> None:
            running.append(item.id)
            scribe.start(item)
            await lab.clock.sleep(10)
            if item.id == "poison":
                beside.append([one for one in running if one != "poison"])
                worker.process.die()
            scribe.end(item, "done")
            running.remove(item.id)

    client = Client(lab, history, "mixed")
    ids = [f"healthy-{number:02}" for number in range(HEALTHY)]
    ids.insert(HEALTHY // 2, "poison")
    await client.enqueue(*(("mixed", item_id) for item_id in ids))
    for _ in range(MAX_CRASHES):
        worker = Worker(lab, history, register)
        await worker.buried()
    worker = Worker(lab, history, register)
    await lab.pass_time("2m")
    assert not worker.dead, "it was run once too often"
    await worker.stop()
    found = await judged(lab, history)
    poison = found.finals.pop("poison")
    assert poison.item.letter is not None
    assert (poison.item.state, poison.item.letter.reason) == (State.DEAD, "max_crashes")
    assert [attempt.ending for attempt in poison.attempts] == [Ending.CRASHED] * MAX_CRASHES
    assert beside[0], "it had neighbours the first time"
    assert (len(beside), beside[-1]) == (MAX_CRASHES, []), "the last crash was not alone"
    assert len(found.finals) == HEALTHY
    assert {final.item.state for final in found.finals.values()} == {State.DONE}
    assert all(final.item.crashes < MAX_CRASHES for final in found.finals.values())
