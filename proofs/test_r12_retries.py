"""R12, the live part: many retries due within a minute, none of them early. The arithmetic is tested in tests/core."""

from __future__ import annotations

import random
import time
from datetime import timedelta

import pytest

from redrive import Item, Policy, Redrive, Retry, exponential
from redrive.core.states import State
from redrive.events import Finished
from tests.support.lab import Lab, Seen
from tests.support.rig.size import RETRIES, RETRY_SPELL, Size, proof_size

POLL = 1_000
"""How often the slowest store looks by itself."""


async def retries(lab: Lab, count: int) -> None:
    app = await lab.app()
    dice = random.Random(12)
    due: dict[str, int] = {}
    early: list[str] = []
    late: list[int] = []

    @app.handler("q", policy=Policy(backoff=exponential("1s", factor=2, cap="1m", jitter=0.5)), concurrency=500)
    async def handle(item: Item) -> None:
        now = lab.clock.now()
        if item.id in due:
            if now < due[item.id]:
                early.append(item.id)
            late.append(now - due[item.id])
        if item.errors < 3:
            raise ConnectionError(f"busy {dice.random()}")

    def note(event: object) -> None:
        if isinstance(event, Finished) and event.retry_in_ms is not None:
            due[event.id] = lab.clock.now() + event.retry_in_ms

    app.events.subscribe(note)
    seen = Seen(app)
    await app.enqueue_many("q", [None] * count)
    await lab.drain(app)
    (row,) = (await app.tally()).queues
    assert (row.done, row.ready, row.leased, row.open) == (count, 0, 0, 0)
    assert len(late) == 3 * count
    assert early == []
    assert sorted(late)[int(len(late) * 0.99)] <= 2 * POLL
    assert sum(event.ending == "failed" for event in seen.of(Finished)) == 3 * count


@pytest.mark.slow
async def test_r12_no_retry_is_early_smoke(lab: Lab) -> None:
    await retries(lab, RETRIES[Size.SMOKE])


@pytest.mark.prove
@pytest.mark.timeout(900)
async def test_r12_no_retry_is_early(lab: Lab) -> None:
    await retries(lab, RETRIES[proof_size()])


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


@pytest.mark.slow
async def test_r12_no_retry_is_early_by_the_real_clock_smoke(shared: str) -> None:
    await by_the_real_clock(shared, RETRIES[Size.SMOKE], RETRY_SPELL[Size.SMOKE])


@pytest.mark.prove
@pytest.mark.timeout(300)
async def test_r12_no_retry_is_early_by_the_real_clock(shared: str) -> None:
    await by_the_real_clock(shared, RETRIES[proof_size()], RETRY_SPELL[proof_size()])


async def test_r12_due_times_are_the_stores_and_survive_the_worker(lab: Lab) -> None:
    """A schedule is a persisted due time: another worker keeps it, whatever became of the one that made it."""
    first, second = await lab.app(), await lab.app()
    runs: list[int] = []

    async def handle() -> None:
        runs.append(lab.clock.now())
        if len(runs) == 1:
            raise ValueError("once more")

    for app in (first, second):
        app.handler("q", policy=Policy(backoff=exponential("45s")))(handle)
    item_id = await first.enqueue("q")
    async with lab.working(first):
        await lab.until(lambda: bool(runs))
        await lab.quiet()
    due = (await lab.item(item_id)).due_at
    assert due == runs[0] + 45_000
    await lab.drain(second)
    assert (await lab.item(item_id)).state is State.DONE
    assert due <= runs[1] <= due + POLL


async def test_r12_a_wall_clock_set_back_does_not_put_off_what_is_due(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q")
    async def handle() -> None:
        runs.append(lab.clock.monotonic())

    async with lab.working(app):
        await app.enqueue("q", delay="20s")
        await lab.pass_time("5s")
        lab.clock.jump_wall(-3_600_000)
        await lab.until(lambda: bool(runs), limit="2m")
    assert 20_000 <= runs[0] <= 20_000 + 2 * POLL
