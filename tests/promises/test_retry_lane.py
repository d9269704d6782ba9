"""A replay of thousands beside fresh work: it has a lane of its own, so nobody who comes in new has to wait for it."""

from __future__ import annotations

import random

import pytest

from redrive import Item
from redrive.core.acts import Replay
from redrive.core.item import Millis, NewItem
from redrive.core.select import Ids
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import act, asking, dead
from tests.support.lab import Lab

SLOTS = 20
TAKES = (50, 150)
"""Milliseconds: two hundred a second with all slots."""
EVERY = 7
"""Milliseconds between fresh items: about 70 % of what the slots can do."""
FRESH = 200
SHARE = 0.25
"""With what fresh work takes, a little less than all: where there is more to do than slots, everybody waits."""


class Load:
    """Fresh items at a steady pace; how long each took from the put to its end, and how many replayed ones ended."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.dice = random.Random(13)
        self.took: list[Millis] = []
        self.replayed = 0

    async def worker(self, name: str) -> None:
        """Until all fresh items of that name have ended."""
        app = await self.lab.app()

        @app.handler("q", concurrency=SLOTS, lease="10m")
        async def handle(item: Item) -> None:
            await self.lab.clock.sleep(self.dice.randint(*TAKES))
            if item.replays:
                self.replayed += 1
            else:
                self.took.append(self.lab.clock.now() - item.enqueued_at)

        async def offer() -> None:
            for number in range(FRESH):
                await self.lab.shared.put([NewItem(f"{name}-{number}", "q", b"null")])
                await self.lab.clock.sleep(EVERY)

        async with self.lab.working(app):
            await self.lab.drive(offer())
            await self.lab.until(lambda: len(self.took) >= FRESH)

    @property
    def p95(self) -> Millis:
        return sorted(self.took)[len(self.took) * 95 // 100]


async def letters(lab: Lab, count: int) -> tuple[str, ...]:
    ids = tuple(f"letter-{number}" for number in range(count))
    for start in range(0, count, 500):
        await lab.store.put([NewItem(item_id, "q", b"null") for item_id in ids[start : start + 500]])
        items = (await lab.store.lease(asking(500, queue="q"))).items
        await lab.store.settle([dead(item) for item in items])
    return ids


async def replay_beside_fresh_work(lab: Lab, count: int) -> None:
    await lab.store.configure("q", QueueChange(retry_share=SHARE))
    ids = await letters(lab, count)
    alone = Load(lab)
    await alone.worker("alone")
    for start in range(0, count, 1000):
        await lab.store.amend(Ids(ids[start : start + 1000]), Replay(), act())
    beside = Load(lab)
    await beside.worker("beside")
    assert beside.replayed >= min(count, FRESH * SHARE / 2), "the replay stood still: this proves nothing"
    assert beside.p95 <= alone.p95 * 1.2, f"{alone.p95} ms alone, {beside.p95} ms beside the replay"


@pytest.mark.slow
async def test_gap13_a_replay_does_not_hold_up_fresh_work(lab: Lab) -> None:
    await replay_beside_fresh_work(lab, 300)


async def test_gap13_a_replay_takes_all_slots_that_nobody_else_wants(lab: Lab) -> None:
    await lab.store.configure("q", QueueChange(retry_share=SHARE))
    ids = await letters(lab, 3 * SLOTS)
    await lab.store.amend(Ids(ids), Replay(), act())
    app = await lab.app()
    running: set[str] = set()
    most = 0

    @app.handler("q", concurrency=SLOTS)
    async def handle(item: Item) -> None:
        nonlocal most
        running.add(item.id)
        most = max(most, len(running))
        await lab.clock.sleep(TAKES[0])
        running.discard(item.id)

    await lab.drain(app)
    assert most == SLOTS
    assert (await lab.store.tally()).queues[0].done == len(ids)
