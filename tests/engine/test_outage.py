"""A store that fails: the worker neither exits nor spins, says so once, keeps its results and settles them later."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.states import State
from redrive.errors import StoreUnavailable
from redrive.events import Finished, StoreFailed, StoreRecovered
from redrive.testing.faults import Fault, FaultyStore
from tests.support.lab import Lab, Seen

VERBS = ("lease", "settle", "extend", "reclaim", "tally", "wait", "beat")


def counting(app: Redrive) -> list[str]:
    runs: list[str] = []

    @app.handler("q", lease="30s", policy=Policy(backoff=constant("1s")))
    async def handle(item: Item) -> str:
        runs.append(item.id)
        return "done"

    return runs


def cut(faulty: FaultyStore) -> None:
    for verb in (*VERBS, "documents"):
        faulty.fail(verb)


async def test_an_outage_is_told_once_per_part_and_so_is_its_end(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    runs = counting(app)
    seen = Seen(app)
    async with lab.working(app) as worker:
        cut(faulty)
        await lab.pass_time("30s")
        assert not worker.done()
        failed = [event.part for event in seen.of(StoreFailed)]
        assert len(failed) == len(set(failed))
        assert seen.of(StoreRecovered) == []
        faulty.heal()
        item_id = await app.enqueue("q")
        await lab.until(lambda: bool(runs))
        await lab.pass_time("20s")
        recovered = [event.part for event in seen.of(StoreRecovered)]
    assert runs == [item_id]
    assert sorted(recovered) == sorted(failed)
    assert (await lab.item(item_id)).state is State.DONE


async def test_a_worker_does_not_spin_while_the_store_is_gone(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    counting(app)
    async with lab.working(app):
        cut(faulty)
        await lab.pass_time("10s")
        before = len(faulty.calls)
        await lab.pass_time("1m")
        calls = len(faulty.calls) - before
        faulty.heal()
    # Five parts that ask, each every five seconds at most once the pauses have grown.
    assert 0 < calls <= 75


async def test_results_wait_for_the_store_and_nothing_runs_twice(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    runs = counting(app)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 10)]
    faulty.fail("settle", times=6)
    await lab.drain(app)
    assert sorted(runs) == sorted(ids)
    for item_id in ids:
        item = await lab.item(item_id)
        assert (item.state, item.deliveries) == (State.DONE, 1)


async def test_leases_of_ended_handlers_are_kept_while_settle_fails(lab: Lab) -> None:
    """Longer than the lease: the result is there, only the store does not take it yet."""
    app, faulty = await lab.faulty()
    other = await lab.app()
    runs = counting(app)
    elsewhere = counting(other)
    seen = Seen(app)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.until(lambda: bool(seen.of(Finished)))
        second = await app.enqueue("q")
        faulty.fail("settle")
        await lab.until(lambda: len(runs) == 2)
        async with lab.working(other):
            await lab.pass_time("45s")
            assert elsewhere == []
            faulty.heal()
            await lab.until(lambda: len(seen.of(Finished)) == 2)
    assert runs == [item_id, second]
    item = await lab.item(second)
    assert (item.state, item.deliveries, item.crashes) == (State.DONE, 1, 0)


@pytest.mark.parametrize("verb", VERBS)
async def test_one_verb_that_fails_is_not_called_back_to_life_by_another(lab: Lab, verb: str) -> None:
    app, faulty = await lab.faulty()
    counting(app)
    seen = Seen(app)
    await app.enqueue("q")
    faulty.fail(verb)
    async with lab.working(app) as worker:
        await lab.pass_time("15s")
        assert not worker.done()
        assert len(seen.of(StoreFailed)) <= 2
        assert seen.of(StoreRecovered) == []
        faulty.heal()


async def test_a_store_that_is_gone_refuses_enqueue_loudly(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    counting(app)
    faulty.fail("put")
    with pytest.raises(StoreUnavailable):
        await app.enqueue("q")
    with pytest.raises(StoreUnavailable):
        await app.enqueue_many("q", [None, None])
    faulty.heal()
    assert not any(row.ready or row.leased or row.done for row in (await app.tally()).queues)


async def test_a_stop_during_an_outage_ends_in_time(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    runs = counting(app)
    item_id = await app.enqueue("q")
    faulty.fail("settle")
    worker = asyncio.create_task(app.run(grace="5s"))
    await lab.until(lambda: bool(runs))
    begun = lab.clock.monotonic()
    await lab.drive(app.stop())
    await lab.drive(worker)
    assert lab.clock.monotonic() - begun <= 5_000 + 2_000
    # Nobody could be told: the lease lapses and the item runs again, which its history explains.
    faulty.heal()
    await lab.drain(app)
    item = await lab.item(item_id)
    assert (item.state, item.crashes, item.deliveries) == (State.DONE, 1, 3)


@pytest.mark.parametrize("fault", list(Fault))
async def test_every_fault_of_every_verb_is_survived(lab: Lab, fault: Fault) -> None:
    app, faulty = await lab.faulty()
    runs = counting(app)
    for number in (1, 3):
        for verb in VERBS:
            faulty.at(verb, number, fault)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 5)]
    await lab.drain(app)
    assert sorted(runs) == sorted(ids)
    assert {(await lab.item(item_id)).state for item_id in ids} == {State.DONE}


async def test_a_worker_that_starts_in_the_moment_of_trouble_rides_it_out(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    done: list[str] = []

    @app.handler("late")
    async def handle(item: Item) -> None:
        done.append(item.id)

    app.queue("late")
    other = await lab.app()
    other.queue("late")
    item_id = await other.enqueue("late")
    faulty.fail("configure", times=3)
    await lab.drain(app)
    assert done == [item_id]
