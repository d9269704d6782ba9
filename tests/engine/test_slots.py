"""How much a worker takes: never more than its slots, and from every queue in turn."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from redrive import Item
from redrive.core.states import State
from redrive.errors import ConfigError
from redrive.events import Finished, Leased
from tests.support.lab import Lab, Seen


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_concurrency_is_never_exceeded(lab: Lab, sync: bool) -> None:
    app = await lab.app()
    lock = threading.Lock()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    barrier = threading.Barrier(3, timeout=30)

    def enter() -> None:
        with lock:
            now["q"] += 1
            most["q"] = max(most["q"], now["q"])

    def leave() -> None:
        with lock:
            now["q"] -= 1

    async def in_loop() -> None:
        enter()
        await lab.clock.sleep(100)
        leave()

    def in_thread() -> None:
        enter()
        barrier.wait()  # three are really there at once
        leave()

    app.handler("q", concurrency=3)(in_thread if sync else in_loop)
    await app.enqueue_many("q", [None] * 30)
    await lab.drain(app)
    (row,) = (await app.tally()).queues
    assert row.done == 30
    assert most["q"] == 3


async def test_a_worker_never_holds_more_than_its_slots(lab: Lab) -> None:
    """What is leased and does not run would be charged if the worker died, for nothing."""
    app = await lab.app()
    gate = asyncio.Event()

    @app.handler("q", concurrency=4)
    async def wait() -> None:
        await gate.wait()

    seen = Seen(app)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("10s")
        (row,) = (await app.tally()).queues
        assert row.leased == 4
        gate.set()
        await lab.until(lambda: sum(len(event.ids) for event in seen.of(Leased)) == 20)
    assert max(len(event.ids) for event in seen.of(Leased)) <= 4


async def test_a_long_queue_does_not_starve_a_short_one(lab: Lab) -> None:
    app = await lab.app()
    order: list[str] = []

    async def note(item: Item) -> None:
        order.append(item.queue)
        await lab.clock.sleep(10)

    for queue in ("flood", "trickle"):
        app.handler(queue, concurrency=2)(note)
    await app.enqueue_many("flood", [None] * 50)
    await app.enqueue_many("trickle", [None] * 5)
    await lab.drain(app)
    assert max(index for index, queue in enumerate(order) if queue == "trickle") < 25


async def test_many_queues_are_all_served(lab: Lab) -> None:
    app = await lab.app()
    order: list[str] = []

    async def note(item: Item) -> None:
        order.append(item.queue)

    names = [f"queue-{number}" for number in range(12)]
    for name in names:
        app.handler(name, concurrency=1)(note)
        await app.enqueue_many(name, [None] * 3)
    await lab.drain(app)
    assert Counter(order) == Counter(dict.fromkeys(names, 3))


async def test_first_come_first_served_within_a_queue(lab: Lab) -> None:
    app = await lab.app()
    order: list[int] = []

    @app.handler("q", concurrency=1)
    async def note(number: int) -> None:
        order.append(number)

    await app.enqueue_many("q", [{"number": number} for number in range(50)])
    await lab.drain(app)
    assert order == list(range(50))


async def test_pausing_stops_new_leases_and_lets_what_runs_go_on(lab: Lab) -> None:
    app = await lab.app()
    gate = asyncio.Event()
    runs: list[str] = []

    @app.handler("q", concurrency=1)
    async def wait(item: Item) -> None:
        runs.append(item.id)
        await gate.wait()

    first, second = [str(each) for each in await app.enqueue_many("q", [None, None])]
    async with lab.working(app):
        await lab.until(lambda: bool(runs))
        await app.pause("q", reason="maintenance")
        gate.set()
        await lab.pass_time("10s")
        assert (await lab.item(first)).state is State.DONE
        assert (await lab.item(second)).state is State.READY
        await app.resume("q")
        await lab.until(lambda: len(runs) == 2)
    assert runs == [first, second]


@pytest.mark.parametrize("queues", [2, 12])
async def test_work_is_found_in_every_queue_however_many_slots_there_are(lab: Lab, queues: int) -> None:
    """Also when one request cannot ask for all free slots."""
    app = await lab.app()
    names = [f"q{number}" for number in range(queues)]
    for name in names:
        app.handler(name, concurrency=500)(nothing)
    seen = Seen(app)
    async with lab.working(app):
        await lab.pass_time("10s")
        for number, name in enumerate(names, 1):
            begun = lab.clock.monotonic()
            await app.enqueue(name)
            await lab.until(lambda number=number: len(seen.of(Finished)) == number)  # type: ignore[misc]
            assert lab.clock.monotonic() - begun <= 1_000


async def test_a_worker_goes_round_its_queues_at_once_when_something_came(memory_lab: Lab) -> None:
    """A request has room for one of these queues; asking the next one must not wait for a pause."""
    app = await memory_lab.app()
    names = [f"q{number}" for number in range(12)]
    for name in names:
        app.handler(name, concurrency=500)(nothing)
    seen = Seen(app)
    async with memory_lab.working(app):
        for number, name in enumerate(names, 1):
            await memory_lab.pass_time("10s")
            await app.enqueue(name)
            await memory_lab.quiet()
            assert len(seen.of(Finished)) == number


async def nothing() -> None:
    pass


async def test_a_bound_over_all_queues_holds_and_every_queue_has_its_turn(lab: Lab) -> None:
    app = await lab.app()
    seen = Seen(app)
    now: Counter[str] = Counter()
    most: list[int] = []

    async def work(item: Item) -> None:
        now[item.queue] += 1
        most.append(now.total())
        await lab.clock.sleep(100)
        now[item.queue] -= 1

    for queue in ("a", "b", "c"):
        app.handler(queue, concurrency=5)(work)
        await app.enqueue_many(queue, [None] * 6)
    await lab.drive(app.run(until_idle=True, concurrency=2))
    assert max(most) == 2
    assert [row.done for row in (await app.tally()).queues] == [6, 6, 6]
    firsts = [event.queue for event in seen.of(Finished)][:9]
    assert set(firsts) == {"a", "b", "c"}, "no queue waits until another is empty"


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "3"])
async def test_a_bound_is_a_number_of_slots(memory_lab: Lab, concurrency: Any) -> None:
    app = await memory_lab.app()
    app.handler("q")(lambda: None)
    with pytest.raises(ConfigError, match="concurrency"):
        await app.run(concurrency=concurrency)
