"""`app.run_item`: one waiting item, here and now, by its handler, and settled as a worker would."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Dead, Item, Policy, Redrive, constant
from redrive.core.meters import Rate
from redrive.core.states import State
from redrive.core.verbs import QueueChange
from redrive.errors import Conflict, NotFound, UnknownQueue
from redrive.events import Finished, WorkerStarted
from redrive.testing.faults import Fault
from tests.support.lab import Lab, Seen


def noting(app: Redrive) -> list[str]:
    ran: list[str] = []

    @app.handler("q", policy=Policy(backoff=constant("1m"), max_attempts=2))
    async def handle(item: Item, payload: object) -> object:
        ran.append(item.id)
        if payload == "fail":
            raise ValueError("not yet")
        if payload == "dead":
            raise Dead("hopeless")
        return payload

    return ran


async def test_it_runs_that_item_and_no_other(lab: Lab) -> None:
    app = await lab.app()
    ran, seen = noting(app), Seen(app)
    others = await app.enqueue_many("q", ["a", "b"])
    item_id = await app.enqueue("q", "c", delay="1h")
    item = await lab.drive(app.run_item(item_id))
    assert (item.id, item.state, item.result, item.deliveries) == (item_id, State.DONE, b'"c"', 1)
    assert ran == [item_id]
    assert [(await app.get(each)).state for each in others] == [State.READY, State.READY]
    assert [event.id for event in seen.of(Finished)] == [item_id]
    assert not seen.of(WorkerStarted)


async def test_it_runs_one_of_a_paused_queue_beyond_its_limits(lab: Lab) -> None:
    app = await lab.app()
    ran = noting(app)
    await lab.store.configure("q", QueueChange(max_running=1, rate=Rate(1, 60_000, 1)))
    first, second = [str(each) for each in await app.enqueue_many("q", ["a", "b"])]
    await lab.ghost("q", limit=1)
    await app.pause("q", reason="to look at one")
    assert (await lab.drive(app.run_item(second))).state is State.DONE
    assert ran == [second]
    assert (await app.get(first)).state is State.LEASED


async def test_it_gives_the_item_as_it_is_afterwards(lab: Lab) -> None:
    app = await lab.app()
    ran = noting(app)
    fails, dies = [str(each) for each in await app.enqueue_many("q", ["fail", "dead"])]
    item = await lab.drive(app.run_item(fails))
    assert (item.state, item.errors, item.due_at > lab.clock.now()) == (State.READY, 1, True)
    # Due or not: the next attempt is its last.
    item = await lab.drive(app.run_item(fails))
    assert item.letter is not None
    assert (item.state, item.letter.reason, item.attempt) == (State.DEAD, "max_attempts", 2)
    assert (await lab.drive(app.run_item(dies))).state is State.DEAD
    assert ran == [fails, fails, dies]


async def test_it_refuses_what_does_not_wait(lab: Lab) -> None:
    app = await lab.app()
    ran = noting(app)
    with pytest.raises(NotFound):
        await app.run_item("no such item")
    running = await app.enqueue("q", "a")
    await lab.ghost("q")
    done, dead, gone = [str(each) for each in await app.enqueue_many("q", ["a", "dead", "a"])]
    await lab.drive(app.run_item(done))
    await lab.drive(app.run_item(dead))
    await app.cancel(gone, reason="ordered twice")
    ran.clear()
    for item_id, reason in (
        (running, "it runs already"),
        (done, "it is done"),
        (dead, "it is a dead letter"),
        (gone, "it was cancelled"),
    ):
        before = await app.history(item_id)
        with pytest.raises(Conflict, match=reason):
            await app.run_item(item_id)
        assert await app.history(item_id) == before
    assert ran == []


async def test_it_refuses_what_waits_for_others_and_names_the_hold(lab: Lab) -> None:
    app = await lab.app()
    ran = noting(app)
    first = await app.enqueue("q", "a", order_key="k")
    second = await app.enqueue("q", "b", order_key="k")
    third = await app.enqueue("q", "c", after=first)
    for item_id, hold in ((second, "order"), (third, "after")):
        with pytest.raises(Conflict, match=f"it has the hold '{hold}'"):
            await app.run_item(item_id)
    assert ran == []


async def test_it_refuses_one_whose_limit_key_is_full(lab: Lab) -> None:
    app = await lab.app()
    noting(app)
    await lab.store.configure("q", QueueChange(max_per_key=1))
    await app.enqueue("q", "a", limit_key="k")
    await lab.ghost("q")
    second = await app.enqueue("q", "b", limit_key="k")
    with pytest.raises(Conflict, match="it has the hold 'limit'"):
        await lab.drive(app.run_item(second))


async def test_it_needs_a_handler(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    noting(app)
    app.queue("other")
    item_id = await app.enqueue("other", "a")
    with pytest.raises(UnknownQueue, match="other"):
        await app.run_item(item_id)
    assert (await app.get(item_id)).state is State.READY


async def test_a_worker_that_runs_beside_it_goes_on(lab: Lab) -> None:
    app = await lab.app()
    ran = noting(app)
    async with lab.working(app):
        await app.pause("q", reason="to look at one")
        item_id = await app.enqueue("q", "a")
        assert (await lab.drive(app.run_item(item_id))).state is State.DONE
        await app.resume("q")
        later = await app.enqueue("q", "b")
        await lab.until(lambda: later in ran)


async def test_a_suspect_runs_alone_in_it(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    alone: list[bool] = []

    @app.handler("q", policy=Policy(max_crashes=1))
    async def handle(item: Item) -> None:
        alone.append(item.alone)

    item_id = await app.enqueue("q", "a")
    assert (await lab.drive(app.run_item(item_id))).state is State.DONE
    assert alone == [True]


async def test_a_stop_releases_it(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    began = asyncio.Event()

    @app.handler("q")
    async def handle(item: Item) -> None:
        began.set()
        await asyncio.Event().wait()

    item_id = await app.enqueue("q", "a")
    running = asyncio.create_task(app.run_item(item_id, grace="1s"))
    await began.wait()
    stopping = asyncio.create_task(app.stop())
    item = await lab.drive(running)
    await stopping
    assert (item.state, item.attempt) == (State.READY, 0)


@pytest.mark.parametrize("verb", ["lease", "settle"])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
async def test_it_runs_once_and_its_result_is_settled_when_the_store_is_back(
    memory_lab: Lab, verb: str, fault: Fault
) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    ran = noting(app)
    item_id = await app.enqueue("q", "a")
    faulty.next(verb, fault)
    item = await lab.drive(app.run_item(item_id))
    assert (item.state, item.deliveries, ran) == (State.DONE, 1, [item_id])
