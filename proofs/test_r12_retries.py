"""R12 retries. Of many retries due within a minute none is early. The arithmetic is tested in tests/core."""

from __future__ import annotations

import random
import time
from datetime import timedelta

import pytest

from redrive import Item, Redrive, Retry
from tests.promises.test_r12_retries import retries
from tests.support.lab import Lab
from tests.support.rig.size import RETRIES, RETRY_SPELL, proof_size

SIZE = f"{RETRIES[proof_size()]:,} retries"


async def by_the_real_clock(url: str, count: int, spell: float) -> None:
    """Each fails once and asks for a delay of its own. This process's clock says what is early, not the store's."""
    app = Redrive(url, log=False)
    dice = random.Random(12)
    wanted: dict[str, float] = {}
    late: list[float] = []
    burst = 0.2 + count / 2_000  # seconds in which all have failed, before the first is due again

    @app.handler("q", concurrency=500)
    async def handle(item: Item) -> None:
        now = time.monotonic()
        if item.id in wanted:
            late.append(now - wanted[item.id])
            return
        delay = burst + dice.random() * spell
        # The store counts in whole milliseconds, and the one in which it failed may have begun before.
        wanted[item.id] = now + (int(delay * 1000) - 1) / 1000
        raise Retry("once more", after=timedelta(seconds=delay))

    async with app:
        await app.enqueue_many("q", [None] * count)
        await app.run(until_idle=True)
        (row,) = (await app.tally()).queues
    assert (row.done, row.open, len(late)) == (count, 0, count)
    assert min(late) >= 0, f"{sum(one < 0 for one in late)} of {count} were early"
    late.sort()
    # Only shown: how late depends on the machine; that nobody is forgotten is what the fake clock proves.
    print(f"{count} retries in {spell} s: median {late[count // 2]:.3f} s late, p99 {late[count * 99 // 100]:.3f} s")  # noqa: T201


@pytest.mark.timeout(300)
async def test_r12_no_retry_is_early_by_the_real_clock(shared: str) -> None:
    await by_the_real_clock(shared, RETRIES[proof_size()], RETRY_SPELL[proof_size()])


@pytest.mark.timeout(900)
async def test_r12_no_retry_is_early_by_the_fake_clock(memory_lab: Lab) -> None:
    await retries(memory_lab, RETRIES[proof_size()])
