"""R21 backpressure. What exceeds the capacity is refused, all that was accepted is done, and memory stays bounded."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator

import pytest

from redrive import Redrive
from redrive.core.item import NewItem
from redrive.core.verbs import QueueChange
from redrive.errors import QueueFull
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.promises.test_r21_backpressure import CAPACITY, SLOTS, TAKES, Offers, fill, settled_as_told, too_much
from tests.support.lab import Lab
from tests.support.rig.size import OFFERED, PRESSURE, proof_size
from tests.support.rig.supervisor import resident

SIZE = f"{OFFERED[proof_size()]:,} offered; {PRESSURE[proof_size()]:.0f} s of pressure"

CALLERS = 30
"""By the real clock each waits for its answer, so it takes more of them."""
GROWTH = 1.1
"""Of the memory in use, after the first third."""


async def many_at_once(stores: list[Store], capacity: int) -> None:
    """Whoever comes first is let in, to the last place and not beyond it."""
    await stores[0].configure("busy", QueueChange(capacity=capacity))
    puts = [stores[number % len(stores)].put([NewItem(f"at-once-{number}", "busy", b"")]) for number in range(64)]
    answers = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(answer, QueueFull) for answer in answers) == 64 - capacity
    assert await fill(stores[0]) == capacity


async def test_r21_the_last_place_is_given_once(shared: str) -> None:
    stores = [await store_from_url(shared).open() for _ in range(4)]
    try:
        await many_at_once(stores, 40)
    finally:
        for store in stores:
            await store.close()


# --- by the real clock, as long as it takes ---------------------------------------------------------------------------


@pytest.fixture
def _usual_collector() -> Iterator[None]:
    """The leak detector keeps objects in reference cycles until a test ends: no measure of what a program needs."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_usual_collector")
async def test_r21_memory_is_bounded_under_pressure(shared: str) -> None:
    """Producers and a worker in this process. Whatever is refused must not be kept anywhere."""
    store = await store_from_url(shared).open()
    app = Redrive(store, log=False)

    @app.handler("busy", concurrency=SLOTS)
    async def handle() -> None:
        await asyncio.sleep(TAKES / 1000)  # noqa: TID251 - real work takes real time

    offers = Offers(store)
    async with app:
        await store.configure("busy", QueueChange(capacity=CAPACITY))
        worker = asyncio.create_task(app.run())
        seconds = PRESSURE[proof_size()]
        await _press(offers, seconds / 3)
        before = resident(os.getpid())
        await _press(offers, seconds * 2 / 3)
        after = resident(os.getpid())
        await app.stop()
        await worker
        await app.run(until_idle=True)
        await settled_as_told(store, offers)
    print(f"{len(offers.accepted)} accepted, {offers.refused} refused, {before} then {after} bytes")  # noqa: T201
    assert offers.refused > len(offers.accepted)
    assert after <= before * GROWTH


async def _press(offers: Offers, seconds: float) -> None:
    end = time.monotonic() + seconds

    async def produce() -> None:
        while time.monotonic() < end:
            await offers.offer()

    await asyncio.gather(*(produce() for _ in range(CALLERS)))


@pytest.mark.timeout(1800)
async def test_r21_excess_is_refused_and_the_rest_is_done(memory_lab: Lab) -> None:
    await too_much(memory_lab, OFFERED[proof_size()])
