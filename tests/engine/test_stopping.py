"""A worker that stops: takes nothing new, lets handlers finish within the grace, releases the rest uncharged."""

from __future__ import annotations

import asyncio
import threading

import pytest

from redrive import Item, Redrive, Snooze
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.errors import AppClosed
from redrive.events import Finished, Leased, Started, WorkerStopped
from tests.support.lab import Lab, Seen


def gated(app: Redrive, gate: asyncio.Event, *, concurrency: int = 10) -> list[str]:
    runs: list[str] = []

    @app.handler("q", concurrency=concurrency)
    async def handle(item: Item) -> str:
        runs.append(item.id)
        await gate.wait()
        return "done"

    return runs


async def test_a_stop_lets_short_handlers_finish_and_takes_nothing_new(lab: Lab) -> None:
    app = await lab.app()
    gate = asyncio.Event()
    runs = gated(app, gate, concurrency=2)
    seen = Seen(app)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 5)]
    worker = asyncio.create_task(app.run(grace="30s"))
    await lab.until(lambda: len(runs) == 2)
    stopping = asyncio.create_task(app.stop())
    await lab.quiet()
    gate.set()
    await lab.drive(stopping)
    await lab.drive(worker)
    states = [(await lab.item(item_id)).state for item_id in ids]
    assert sorted(runs) == sorted(ids[:2])
    assert states == [State.DONE] * 2 + [State.READY] * 3
    assert [event.released for event in seen.of(WorkerStopped)] == [0]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_handler_longer_than_the_grace_is_released_at_once_and_uncharged(lab: Lab, sync: bool) -> None:
    app = await lab.app()
    gate = threading.Event()
    started: list[int] = []

    async def hang() -> None:
        started.append(1)
        await asyncio.Event().wait()

    def hang_in_thread() -> None:
        started.append(1)
        gate.wait(20)

    app.handler("q")(hang_in_thread if sync else hang)
    seen = Seen(app)
    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run(grace="5s"))
    await lab.until(lambda: bool(started))
    begun = lab.clock.monotonic()
    await lab.drive(app.stop())
    await lab.drive(worker)
    took = lab.clock.monotonic() - begun
    gate.set()
    found = await lab.history(item_id)
    assert 5_000 <= took <= 7_000
    assert found.item.state is State.READY
    assert found.item.due_at <= lab.clock.now()
    assert (found.item.attempt, found.item.errors, found.item.crashes, found.item.deliveries) == (0, 0, 0, 1)
    assert [attempt.ending for attempt in found.attempts] == [Ending.RELEASED]
    assert [event.released for event in seen.of(WorkerStopped)] == [1]


async def test_a_handler_that_is_cut_may_snooze(lab: Lab) -> None:
    """What it does goes on elsewhere, and must not be begun anew before it is over."""
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q")
    async def elsewhere() -> None:
        runs.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Snooze("40s", note="it goes on") from None

    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run())
    await lab.until(lambda: bool(runs))
    await lab.drive(app.stop(grace=0))
    await lab.drive(worker)
    found = await lab.history(item_id)
    assert (found.item.state, found.item.attempt) == (State.READY, 0)
    assert found.item.due_at - lab.clock.now() > 35_000
    assert [(attempt.ending, attempt.note) for attempt in found.attempts] == [(Ending.SNOOZED, "it goes on")]


async def test_a_second_stop_does_not_wait_for_the_grace(lab: Lab) -> None:
    app = await lab.app()
    runs = gated(app, asyncio.Event())
    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run(grace="1h"))
    await lab.until(lambda: bool(runs))
    first = asyncio.create_task(app.stop())
    await lab.pass_time("10s")
    assert not first.done()
    begun = lab.clock.monotonic()
    await lab.drive(app.stop(grace=0))
    await lab.drive(first)
    await lab.drive(worker)
    assert lab.clock.monotonic() - begun <= 2_000
    item = await lab.item(item_id)
    assert (item.state, item.attempt) == (State.READY, 0)


async def test_the_grace_of_a_stop_shortens_that_of_the_run(lab: Lab) -> None:
    """Also for two workers of one app: each has the same grace, not one after the other."""
    app = await lab.app()
    runs = gated(app, asyncio.Event(), concurrency=1)
    await app.enqueue_many("q", [None, None])
    workers = [asyncio.create_task(app.run(grace="1h")) for _ in range(2)]
    await lab.until(lambda: len(runs) == 2)
    begun = lab.clock.monotonic()
    await lab.drive(app.stop(grace="5s"))
    for worker in workers:
        await lab.drive(worker)
    assert 5_000 <= lab.clock.monotonic() - begun <= 7_000
    (row,) = (await app.tally()).queues
    assert (row.ready, row.leased) == (2, 0)


async def test_a_handler_that_will_not_be_cancelled_does_not_keep_the_worker(lab: Lab) -> None:
    app = await lab.app()
    leave = asyncio.Event()
    started: list[int] = []

    @app.handler("q")
    async def stubborn() -> None:
        started.append(1)
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue

    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run(grace="1s"))
    await lab.until(lambda: bool(started))
    begun = lab.clock.monotonic()
    await lab.drive(app.stop())
    await lab.drive(worker)
    assert lab.clock.monotonic() - begun <= 1_000 + 2_000
    found = await lab.history(item_id)
    assert found.item.state is State.READY
    assert [attempt.ending for attempt in found.attempts] == [Ending.RELEASED]
    leave.set()
    await lab.quiet()


async def test_what_was_released_runs_at_once_elsewhere(lab: Lab) -> None:
    app, other = await lab.app(), await lab.app()
    runs = gated(app, asyncio.Event())
    done = asyncio.Event()
    done.set()
    elsewhere = gated(other, done)
    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run(grace="1s"))
    await lab.until(lambda: bool(runs))
    async with lab.working(other):
        await lab.drive(app.stop(grace=0))
        await lab.drive(worker)
        await lab.quiet()
        assert elsewhere == [item_id]
    item = await lab.item(item_id)
    assert (item.state, item.attempt, item.deliveries) == (State.DONE, 1, 2)


async def test_closing_the_app_stops_its_worker_and_releases_what_it_held(lab: Lab) -> None:
    app = await lab.app()
    runs = gated(app, asyncio.Event())
    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run())
    await lab.until(lambda: bool(runs))
    await lab.drive(app.close())
    await lab.drive(worker)
    item = await lab.item(item_id)
    assert (item.state, item.attempt) == (State.READY, 0)
    with pytest.raises(AppClosed):
        await app.enqueue("q")


async def test_a_cancelled_run_releases_what_it_held(lab: Lab) -> None:
    """Ctrl-C under asyncio.run cancels the task that runs the worker."""
    app = await lab.app()
    runs = gated(app, asyncio.Event())
    item_id = await app.enqueue("q")
    worker = asyncio.create_task(app.run())
    await lab.until(lambda: bool(runs))
    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lab.drive(worker)
    item = await lab.item(item_id)
    assert (item.state, item.attempt, item.errors, item.crashes) == (State.READY, 0, 0, 0)


async def test_a_stop_in_the_turn_of_the_lease_releases_at_once(lab: Lab) -> None:
    """The items are leased, their handlers have not begun."""
    app = await lab.app()
    gated(app, asyncio.Event())
    seen = Seen(app)
    stops: list[asyncio.Task[None]] = []
    app.events.subscribe(lambda event: _stop_on_lease(event, app, stops))
    item_id = await app.enqueue("q")
    begun = lab.clock.monotonic()
    worker = asyncio.create_task(app.run())
    await lab.drive(worker)
    await lab.drive(asyncio.gather(*stops))
    found = await lab.history(item_id)
    assert (found.item.state, found.item.attempt) == (State.READY, 0)
    assert [attempt.ending for attempt in found.attempts] == [Ending.RELEASED]
    assert lab.clock.monotonic() - begun < 500
    assert len(seen.of(Started)) <= 1


def _stop_on_lease(event: object, app: Redrive, stops: list[asyncio.Task[None]]) -> None:
    if isinstance(event, Leased) and not stops:
        stops.append(asyncio.create_task(app.stop(grace=0)))


async def test_a_stop_keeps_the_results_of_handlers_that_finish_in_the_grace(lab: Lab) -> None:
    app = await lab.app()
    gate = asyncio.Event()
    runs = gated(app, gate)
    seen = Seen(app)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 8)]
    worker = asyncio.create_task(app.run(grace="10s"))
    await lab.until(lambda: len(runs) == 8)
    stopping = asyncio.create_task(app.stop())
    await lab.pass_time("9s")
    gate.set()
    await lab.drive(stopping)
    await lab.drive(worker)
    assert {(await lab.item(item_id)).state for item_id in ids} == {State.DONE}
    assert {event.ending for event in seen.of(Finished)} == {"done"}


async def test_stop_without_a_worker_returns(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    await app.stop()
    await app.stop(grace=0)


async def test_a_handler_may_stop_its_worker_and_is_done(lab: Lab) -> None:
    """It does not wait for the worker, which waits for it."""
    app = await lab.app()

    @app.handler("q", concurrency=1)
    async def stopper() -> None:
        await app.stop()

    ids = await app.enqueue_many("q", [None] * 3)
    await lab.drive(app.run(grace="30s"), limit="10s")
    states = [(await lab.item(each)).state for each in ids]
    assert State.DONE in states
    assert State.LEASED not in states
