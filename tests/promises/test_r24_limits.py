"""R24, limits: never more at once than a queue or a key allows, over the whole fleet, and no place is ever leaked.

With real processes and real kills: test_r24_killed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import NewItem, Terms
from redrive.core.verbs import QueueChange
from redrive.events import Reclaimed
from redrive.stores.base import Store
from redrive.testing.conformance.kit import asking, finished
from tests.support.lab import Lab
from tests.support.rig.size import Lines

MOST = 3
PER_KEY = 1
WORKERS = 3


class Run:
    def __init__(self, lab: Lab, size: Lines, seed: int) -> None:
        self.lab = lab
        self.size = size
        self.dice = random.Random(seed)
        self.running: dict[str, str] = {}
        self.reached: Counter[int] = Counter()
        self.excess: list[str] = []

    async def play(self) -> None:
        store = self.lab.store
        apps = [await self.lab.app() for _ in range(WORKERS)]
        for app in apps:
            self._handle(app)
        await store.configure("limited", QueueChange(max_running=MOST, max_per_key=PER_KEY))
        await self._put()
        for number in range(self.size.kills):
            # It takes what it gets, and is never heard of again.
            for item in await self.lab.ghost("limited", worker=f"ghost-{number}", ttl="5s", limit=2):
                self._started(item)
            await self.lab.drive(asyncio.gather(*(app.run(until_idle=True) for app in apps)), limit="30d")
            await self._put()
        await self.lab.drive(asyncio.gather(*(app.run(until_idle=True) for app in apps)), limit="30d")
        assert self.excess == []
        assert self.reached[MOST], "the limit was never reached: this proves nothing"
        (row,) = (await store.tally()).queues
        count = self.size.keys * self.size.items * (self.size.kills + 1)
        assert (row.done, row.ready, row.held, row.leased) == (count, 0, 0, 0)
        assert (await store.check()).findings == ()
        await no_leaks(store, "limited")

    def _handle(self, app: Redrive) -> None:
        @app.handler("limited", policy=Policy(backoff=constant("1s"), max_crashes=1000), lease="10s", concurrency=5)
        async def handle(item: Item) -> None:
            self._started(item)
            try:
                await self.lab.clock.sleep(self.dice.randrange(1, 30))
                if self.dice.random() < 0.2:
                    raise ConnectionError("not this time")
            finally:
                del self.running[item.id]

        def note(event: object) -> None:
            if isinstance(event, Reclaimed):
                self.running.pop(event.id, None)

        app.events.subscribe(note)

    def _started(self, item: Item) -> None:
        assert item.terms is not None
        self.running[item.id] = item.terms.limit_key
        self.reached[len(self.running)] += 1
        per_key = Counter(self.running.values()).most_common(1)[0][1]
        if len(self.running) > MOST or per_key > PER_KEY:
            self.excess.append(f"{len(self.running)} at once, {per_key} of one key")

    async def _put(self) -> None:
        keys = [f"key-{number}" for number in range(self.size.keys) for _ in range(self.size.items)]
        self.dice.shuffle(keys)
        await self.lab.store.put([limited(key) for key in keys])


numbers = itertools.count()


def limited(key: str) -> NewItem:
    return NewItem(f"{key}-{next(numbers):06}", "limited", b"{}", terms=Terms(limit_key=key))


async def no_leaks(store: Store, queue: str) -> None:
    """Every place can be taken again, and no more than those."""
    await store.put([limited(f"fresh-{number}") for number in range(2 * MOST)])
    items = (await store.lease(asking(10 * MOST, queue=queue, worker="counter"))).items
    assert len(items) == MOST
    await store.settle([finished(item) for item in items])
    await store.configure(queue, QueueChange(max_running=None))
    await store.put([limited("key-0") for _ in range(3)])
    of_one = (await store.lease(asking(10 * MOST, queue=queue, worker="counter"))).items
    keys = Counter(item.terms.limit_key for item in of_one if item.terms is not None)
    assert keys["key-0"] == PER_KEY


@pytest.mark.slow
async def test_r24_limits_hold_for_the_whole_fleet(lab: Lab) -> None:
    """More of them: proofs/test_r24_keys.py."""
    await Run(lab, Lines(keys=4, items=10 if lab.kind == "memory" else 4, kills=2), seed=24).play()
