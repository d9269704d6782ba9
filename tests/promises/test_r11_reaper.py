"""R11: the rescuer, where real systems break. Seven cases, on every store."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.core.verbs import WorkerFacts
from redrive.events import Finished, Reclaimed, SettleRefused, Started, WorkerStarted
from redrive.testing.faults import SimulatedCrash
from tests.support.lab import Lab, Seen

LEASE = 12_000
PERIOD = LEASE // 4
POLICY = Policy(backoff=constant("100ms"))


def handle_all(app: Redrive, queue: str = "q") -> list[str]:
    runs: list[str] = []

    @app.handler(queue, lease=LEASE / 1000, policy=POLICY, concurrency=10)
    async def handle(item: Item) -> None:
        runs.append(item.id)

    return runs


def handle_gated(app: Redrive, gate: asyncio.Event) -> list[str]:
    runs: list[str] = []

    @app.handler("q", lease=LEASE / 1000, policy=POLICY, concurrency=1)
    async def handle(item: Item) -> str:
        runs.append(item.id)
        await gate.wait()
        return "the first"

    return runs


async def test_r11a_completed_before_the_rescue_stays_done(lab: Lab) -> None:
    """The lease has lapsed and the rescue is on its way, but the holder's word comes first."""
    (slow, cut), (other, way) = await lab.faulty(), await lab.faulty()
    gate = asyncio.Event()
    runs, elsewhere = handle_gated(slow, gate), handle_all(other)
    seen, seen_by_other = Seen(slow), Seen(other)
    item_id = await slow.enqueue("q")
    async with lab.working(slow):
        await lab.until(lambda: bool(runs))
        cut.fail("extend")
        cut.fail("reclaim")
        await lab.pass_time("20s")
        rescue = way.hold("reclaim")
        async with lab.working(other):
            await lab.until(rescue.reached.is_set)
            gate.set()
            await lab.until(lambda: bool(seen.of(Finished)))
            before = await lab.history(item_id)
            rescue.release()
            await lab.pass_time("1m")
    assert before.item.state is State.DONE
    assert await lab.history(item_id) == before
    assert elsewhere == []
    assert seen_by_other.of(Reclaimed) == []


async def test_r11a_completed_in_the_middle_of_the_rescue_is_refused_and_runs_again(lab: Lab) -> None:
    """The rescuer has the item and has not said so yet: the old word must not get between."""
    (slow, cut), (other, way) = await lab.faulty(), await lab.faulty()
    gate = asyncio.Event()
    runs, elsewhere = handle_gated(slow, gate), handle_all(other)
    seen, seen_by_other = Seen(slow), Seen(other)
    item_id = await slow.enqueue("q")
    async with lab.working(slow):
        await lab.until(lambda: bool(runs))
        cut.fail("extend")
        cut.fail("reclaim")
        middle = way.hold("settle")
        async with lab.working(other):
            await lab.until(middle.reached.is_set)
            gate.set()
            await lab.until(lambda: bool(seen.of(SettleRefused)))
            cut.fail("lease")
            middle.release()
            await lab.until(lambda: any(event.state == "done" for event in seen_by_other.of(Finished)))
    found = await lab.history(item_id)
    assert elsewhere == [item_id]
    assert found.item.result is None
    assert (found.item.state, found.item.crashes) == (State.DONE, 1)
    assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED, Ending.DONE]


async def test_r11b_work_of_an_unknown_queue_is_left_alone_until_somebody_knows_it(lab: Lab) -> None:
    app, expert = await lab.app(), await lab.app()
    handle_all(app)
    app.queue("strange")
    item_id = await app.enqueue("strange", {"keep": "me"})
    waiting = await app.enqueue("strange")
    await lab.ghost("strange", limit=1)
    before = await lab.item(item_id)
    async with lab.working(app):
        await lab.pass_time("5m")
    assert await lab.item(item_id) == before
    assert before.state is State.LEASED
    assert (await lab.item(waiting)).state is State.READY
    runs = handle_all(expert, "strange")
    await lab.drain(expert)
    assert sorted(runs) == sorted([item_id, waiting])
    assert (await lab.item(item_id)).state is State.DONE


async def test_r11c_a_full_batch_that_cannot_be_rescued_does_not_starve_the_rest(lab: Lab) -> None:
    app = await lab.app()
    runs = handle_all(app)
    app.queue("strange")
    await app.enqueue_many("strange", [None] * 250)
    assert len(await lab.ghost("strange", ttl="1s", limit=250)) == 250
    lab.clock.advance("10s")
    mine = [str(each) for each in await app.enqueue_many("q", [None] * 5)]
    await lab.ghost("q", ttl="12s")
    begun = lab.clock.monotonic()
    async with lab.working(app):
        await lab.until(lambda: len(runs) == 5)
    assert lab.clock.monotonic() - begun <= LEASE + 2 * PERIOD + 100
    assert sorted(runs) == sorted(mine)


async def test_r11c_more_than_one_batch_is_rescued_in_one_go(lab: Lab) -> None:
    app = await lab.app()
    handle_all(app)
    await app.enqueue_many("q", [None] * 250)
    await lab.ghost("q", ttl="1s", limit=250)
    lab.clock.advance("10s")
    seen = Seen(app)
    async with lab.working(app):
        await lab.until(lambda: len(seen.of(Reclaimed)) == 250)
        assert lab.clock.monotonic() <= 10_000 + PERIOD


async def test_r11d_a_worker_nobody_ever_heard_of_does_not_hide_its_items(lab: Lab) -> None:
    app = await lab.app()
    runs = handle_all(app)
    item_id = await app.enqueue("q")
    await lab.ghost("q", ttl="12s")
    assert await app.workers() == ()
    begun = lab.clock.monotonic()
    async with lab.working(app):
        await lab.until(lambda: bool(runs))
    assert runs == [item_id]
    assert LEASE <= lab.clock.monotonic() - begun <= LEASE + 2 * PERIOD + 100


async def test_r11e_a_worker_that_comes_back_under_the_same_name_does_not_keep_old_leases(lab: Lab) -> None:
    app = await lab.app()
    runs = handle_all(app)
    item_id = await app.enqueue("q")
    await lab.ghost("q", worker="pod-1", ttl="12s")
    async with lab.working(app):
        for _ in range(10):
            await lab.store.beat("pod-1", WorkerFacts(("q",)), 60_000)
            await lab.pass_time("2s")
        await lab.until(lambda: bool(runs))
    assert runs == [item_id]


async def test_r11e_workers_of_one_process_have_different_names(lab: Lab) -> None:
    app = await lab.app()
    handle_all(app)
    seen = Seen(app)
    await lab.drain(app)
    await lab.drain(app)
    names = [event.worker for event in seen.of(WorkerStarted)]
    assert len(set(names)) == 2


async def test_r11f_two_reapers_at_once_make_one_rescue(lab: Lab) -> None:
    apps = [await lab.app() for _ in range(3)]
    seen = [Seen(app) for app in apps]
    for app in apps:
        handle_all(app)
    ids = [str(each) for each in await apps[0].enqueue_many("q", [None] * 40)]
    await lab.ghost("q", ttl="1s", limit=40)
    lab.clock.advance("5s")
    await lab.drive(asyncio.gather(*(app.run(until_idle=True) for app in apps)))
    rescues = [event.id for each in seen for event in each.of(Reclaimed)]
    assert sorted(rescues) == sorted(ids)
    for item_id in ids:
        item = await lab.item(item_id)
        assert (item.state, item.crashes, item.deliveries) == (State.DONE, 1, 3)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_r11g_a_reaper_killed_in_the_middle_charges_once(lab: Lab, when: str) -> None:
    """It has taken the items over and dies before, or right after, it settles them."""
    (app, dying), heir = await lab.faulty(), await lab.app()
    handle_all(app)
    runs = handle_all(heir)
    ids = [str(each) for each in await heir.enqueue_many("q", [None] * 10)]
    await lab.ghost("q", ttl="1s", limit=10)
    lab.clock.advance("5s")
    # No leases for the dying one: its first settle is the reaper's.
    dying.fail("lease")
    middle = dying.hold("settle", "before" if when == "before" else "after")
    worker = asyncio.create_task(app.run())
    await lab.until(middle.reached.is_set)
    dying.crashed = True
    middle.release()
    with contextlib.suppress(SimulatedCrash):
        await lab.drive(worker)
    begun = lab.clock.monotonic()
    await lab.drain(heir)
    assert sorted(runs) == sorted(ids)
    for item_id in ids:
        found = await lab.history(item_id)
        assert found.item.state is State.DONE
        assert found.item.crashes == 1
        assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED, Ending.DONE]
    assert lab.clock.monotonic() - begun <= LEASE + 2 * PERIOD + 2_000


async def test_r11_a_worker_does_not_rescue_what_it_holds_itself(lab: Lab) -> None:
    app = await lab.app()
    gate = asyncio.Event()
    runs = handle_gated(app, gate)
    seen = Seen(app)
    await app.enqueue("q")
    async with lab.working(app):
        await lab.pass_time("5m")
        gate.set()
        await lab.until(lambda: bool(seen.of(Finished)))
    assert len(runs) == len(seen.of(Started)) == 1
    assert seen.of(Reclaimed) == []
