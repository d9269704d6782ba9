"""R12, the live part: many retries due within a minute, none of them early. The arithmetic is tested in tests/core."""

from __future__ import annotations

import random

import pytest

from redrive import Item, Policy, exponential
from redrive.core.states import State
from redrive.events import Finished
from tests.support.lab import Lab, Seen

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
async def test_r12_no_retry_is_early(lab: Lab) -> None:
    """More of them, and by the real clock on servers: proofs/test_r12_retries.py."""
    await retries(lab, 100 if lab.kind == "memory" else 20)


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
