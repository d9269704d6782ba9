"""From a line of code to work that is done: schedules of an app, and the workers that fire them."""

from __future__ import annotations

import pytest

from redrive import Item, Redrive
from redrive.core.schedule import tick_of
from redrive.errors import BadSchedule, QueueFull, UnknownQueue
from tests.support.lab import Lab


def reporting(app: Redrive) -> list[str]:
    """Ticks that were handled."""
    ran: list[str] = []

    @app.handler("reports")
    async def report(kind: str, item: Item) -> None:
        ran.append(item.id)

    return ran


async def test_workers_fire_and_do_it_once_also_over_a_restart(lab: Lab) -> None:
    apps = [await lab.app() for _ in range(3)]
    ran = [reporting(app) for app in apps]
    for app in apps:
        app.schedule("stock", "reports", {"kind": "stock"}, every="10s")
    began = lab.clock.now()
    async with lab.working(apps[0]), lab.working(apps[1]):
        await lab.pass_time("35s")
    async with lab.working(apps[2]):
        await lab.pass_time("30s")
    done = sorted(item_id for each in ran for item_id in each)
    expected = range((began // 10_000 + 1) * 10_000, lab.clock.now() + 1, 10_000)
    assert [tick_of(item_id) for item_id in done] == list(expected)
    assert len(done) == 6


async def test_until_idle_does_not_wait_for_ticks(lab: Lab) -> None:
    app = await lab.app()
    ran = reporting(app)
    app.schedule("stock", "reports", {"kind": "stock"}, every="1h")
    await app.enqueue("reports", {"kind": "sales"})
    await lab.drive(app.run(until_idle=True), limit="10s")
    assert len(ran) == 1


async def test_one_name_is_one_schedule(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    reporting(app)
    app.schedule("stock", "reports", {"kind": "stock"}, every="1h")
    app.schedule("stock", "reports", {"kind": "stock"}, every="1h")
    with pytest.raises(BadSchedule, match="declared otherwise already") as caught:
        app.schedule("stock", "reports", {"kind": "stock"}, every="2h")
    assert caught.value.field == "name"


async def test_a_queue_that_nobody_knows_is_told(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.schedule("stock", "reprots", {"kind": "stock"}, every="1h")
    with pytest.raises(UnknownQueue, match="reprots"):
        await app.schedules.list()


async def test_running_by_hand_meets_a_full_queue_as_everybody_does(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    reporting(app)
    app.queue("reports", capacity=1)
    app.schedule("stock", "reports", {"kind": "stock"}, every="1h")
    await app.enqueue("reports", {"kind": "sales"})
    with pytest.raises(QueueFull):
        await app.schedules.run("stock", reason="now")
