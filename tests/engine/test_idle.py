"""run(until_idle=True): waits for what will become due by itself, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Item, Policy, constant, never
from redrive.core.item import NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.states import State
from redrive.core.verbs import GateWrite, QueueChange
from redrive.errors import ConfigError, UnknownQueue
from tests.support.lab import Lab


async def test_it_waits_for_delays_and_retries(lab: Lab) -> None:
    app = await lab.app()
    runs: list[tuple[str, int]] = []

    @app.handler("q", policy=Policy(backoff=constant("6s"), max_attempts=3))
    async def fail(item: Item) -> None:
        runs.append((item.id, lab.clock.now()))
        raise ValueError("no")

    begun = lab.clock.now()
    now, later = await app.enqueue("q"), await app.enqueue("q", delay="9s")
    await lab.drain(app)
    assert [(await lab.item(item_id)).state for item_id in (now, later)] == [State.DEAD, State.DEAD]
    assert [at - begun >= 9_000 for item_id, at in runs if item_id == later] == [True] * 3
    assert lab.clock.now() - begun < 24_000


async def test_it_does_not_wait_for_what_is_paused(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    app.handler("other")(_nothing)
    await app.pause("q", reason="maintenance")
    waiting, done = await app.enqueue("q"), await app.enqueue("other")
    await lab.drain(app, limit="1m")
    assert (await lab.item(waiting)).state is State.READY
    assert (await lab.item(done)).state is State.DONE
    await app.resume("q")
    await lab.drain(app)
    assert (await lab.item(waiting)).state is State.DONE


async def test_it_does_not_wait_for_what_is_held(lab: Lab) -> None:
    """Behind a dead head, parked, or waiting for an item that nobody here will finish."""
    app = await lab.app()
    app.queue("elsewhere")

    @app.handler("q", policy=Policy(never()))
    async def fail(item: Item) -> None:
        raise ValueError("no")

    app.handler("other")(_nothing)
    awaited = str(await app.enqueue("elsewhere"))
    await lab.store.configure("q", QueueChange(order="park"))
    keyed = [NewItem(f"keyed-{number}", "q", b"null", terms=Terms(order_key="k")) for number in range(3)]
    after = NewItem("after", "other", b"null", terms=Terms(after=(awaited,)))
    await lab.store.put([*keyed, after])
    begun = lab.clock.now()
    await lab.drain(app, limit="1m")
    assert lab.clock.now() - begun < 10_000
    assert [(await lab.item(new.id)).state for new in (*keyed, after)] == [State.DEAD, *[State.READY] * 3]
    assert [(await lab.item(new.id)).hold for new in (*keyed, after)] == ["", "parked:order", "parked:order", "after"]


async def test_it_works_off_what_its_own_work_frees(lab: Lab) -> None:
    app = await lab.app()
    order: list[str] = []

    @app.handler("q")
    async def note(item: Item) -> None:
        order.append(item.id)

    app.handler("other")(note)
    await lab.store.configure("q", QueueChange(max_per_key=1))
    news = [
        NewItem("last", "other", b"null", terms=Terms(after=("b", "d"))),
        *[NewItem(each, "q", b"null", terms=Terms(order_key="k")) for each in "ab"],
        *[NewItem(each, "q", b"null", terms=Terms(limit_key="l")) for each in "cd"],
    ]
    await lab.store.put(news)
    await lab.drain(app, limit="1m")
    assert sorted(order) == ["a", "b", "c", "d", "last"]
    assert order.index("a") < order.index("b") < order.index("last")


async def test_it_waits_for_what_a_rate_keeps_back(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    await lab.store.configure("q", QueueChange(rate=Rate(1, 10_000, burst=1)))
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 4)]
    begun = lab.clock.now()
    await lab.drain(app, limit="2m")
    assert {(await lab.item(item_id)).state for item_id in ids} == {State.DONE}
    assert 30_000 <= lab.clock.now() - begun < 40_000


async def test_it_waits_for_what_a_gate_keeps_back(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    await lab.store.configure("q", QueueChange(gate="smtp"))
    await lab.store.set_gate(GateWrite("smtp", 0, interval=60_000_000, shut=True))
    item_id = str(await app.enqueue("q"))
    begun = lab.clock.now()
    await lab.drain(app, limit="5m")
    assert (await lab.item(item_id)).state is State.DONE
    assert 60_000 <= lab.clock.now() - begun < 70_000


async def test_it_does_not_wait_for_queues_it_does_not_handle(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    app.handler("other")(_nothing)
    app.queue("elsewhere")
    ids = [await app.enqueue(queue) for queue in ("q", "other", "elsewhere")]
    await lab.drive(app.run(until_idle=True, queues=["q"]), limit="1m")
    assert [(await lab.item(item_id)).state for item_id in ids] == [State.DONE, State.READY, State.READY]


async def test_it_waits_for_what_others_hold_and_takes_over_what_they_lose(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q", lease="30s", policy=Policy(backoff=constant("1s")))(_nothing)
    item_id = await app.enqueue("q")
    assert len(await lab.ghost("q")) == 1
    begun = lab.clock.monotonic()
    await lab.drain(app)
    item = await lab.item(item_id)
    assert (item.state, item.crashes) == (State.DONE, 1)
    # The lease, then at most two periods of the reaper, the wait after the crash, and the look for what is left.
    assert 30_000 <= lab.clock.monotonic() - begun <= 30_000 + 2 * 5_000 + 1_000 + 2_000


async def test_it_goes_on_with_what_its_handlers_enqueue(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q")
    async def split(depth: int) -> None:
        if depth:
            await app.enqueue_many("q", [{"depth": depth - 1}] * 2)

    await app.enqueue("q", {"depth": 4})
    await lab.drain(app)
    (row,) = (await app.tally()).queues
    assert (row.done, row.ready, row.leased) == (31, 0, 0)


async def test_an_empty_queue_is_idle_at_once(lab: Lab) -> None:
    app = await lab.app()
    app.handler("q")(_nothing)
    begun = lab.clock.monotonic()
    await lab.drain(app)
    assert lab.clock.monotonic() - begun <= 1_000


async def test_a_worker_without_until_idle_waits_and_wakes_at_once_for_new_work(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q")
    async def note() -> None:
        runs.append(lab.clock.now())

    async with lab.working(app) as worker:
        await lab.pass_time("20s")
        assert not worker.done()
        await app.enqueue("q")
        asked = lab.clock.now()
        await lab.until(lambda: bool(runs))
        assert runs[0] - asked <= 1_000


async def test_a_delay_is_kept_to_the_millisecond_and_never_early(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q")
    async def note() -> None:
        runs.append(lab.clock.now())

    async with lab.working(app):
        due = lab.clock.now() + 12_345
        await app.enqueue("q", delay="12345ms")
        await lab.until(lambda: bool(runs))
        assert 0 <= runs[0] - due <= 1_000


async def test_a_worker_for_nothing_is_refused(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    with pytest.raises(ConfigError, match="handler"):
        await app.run(until_idle=True)
    app.handler("emails")(_nothing)
    with pytest.raises(UnknownQueue, match="emails"):
        await app.run(until_idle=True, queues=["emial"])


async def test_two_workers_share_the_work_and_no_item_runs_twice(lab: Lab) -> None:
    apps = [await lab.app(), await lab.app()]
    runs: list[str] = []
    by: list[set[int]] = [set(), set()]

    async def work(item: Item) -> None:
        runs.append(item.id)
        await asyncio.sleep(0)  # noqa: TID251 - a turn for the other worker, no time

    for number, app in enumerate(apps):

        @app.handler("q", concurrency=3)
        async def handle(item: Item, number: int = number) -> None:
            by[number].add(item.seq)
            await work(item)

    ids = [str(each) for each in await apps[0].enqueue_many("q", [None] * 60)]
    await lab.drive(asyncio.gather(*(app.run(until_idle=True) for app in apps)))
    assert sorted(runs) == sorted(ids)
    assert all(by)


async def _nothing() -> None:
    return
