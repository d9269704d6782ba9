"""The crash rule: counted at lease time, never at a neighbour's cost. The worker is a ghost: it leases and is gone.

With real processes: proofs/test_r10_poison.py.
"""

from __future__ import annotations

import asyncio

import pytest

from redrive import Item, Policy, Redrive, constant
from redrive.core.durations import parse
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Want
from redrive.events import Finished, Reclaimed
from redrive.testing import Fault
from tests.support.lab import Lab, Seen

POLICY = Policy(backoff=constant("1s"), max_crashes=3)


def healthy(app: Redrive) -> list[tuple[str, bool]]:
    runs: list[tuple[str, bool]] = []

    @app.handler("q", policy=POLICY, lease="10s", concurrency=10)
    async def handle(item: Item) -> None:
        runs.append((item.id, item.alone))

    return runs


async def test_a_crash_is_charged_to_all_it_held_and_kills_none_of_them(lab: Lab) -> None:
    app = await lab.app()
    healthy(app)
    seen = Seen(app)
    ids = [str(each) for each in await app.enqueue_many("q", [None] * 20)]
    assert len(await lab.ghost("q", ttl="10s")) == 20
    await lab.drain(app)
    for item_id in ids:
        found = await lab.history(item_id)
        assert found.item.state is State.DONE
        assert (found.item.crashes, found.item.errors, found.item.attempt) == (1, 0, 2)
        assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED, Ending.DONE]
        assert found.attempts[0].worker == "ghost"
        assert found.attempts[0].delivery == 1
    assert {event.lost_by for event in seen.of(Reclaimed)} == {"ghost"}
    assert sum(event.ending == "crashed" for event in seen.of(Finished)) == 20


async def test_a_rescue_whose_answer_was_lost_is_told_all_the_same(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    healthy(app)
    seen = Seen(app)
    await app.enqueue("q")
    assert await lab.ghost("q", ttl="10s")
    faulty.next("settle", Fault.UNKNOWN)
    await lab.drain(app)
    assert [event.lost_by for event in seen.of(Reclaimed)] == ["ghost"]
    assert [event.ending for event in seen.of(Finished)] == ["crashed", "done"]


async def test_r10_poison_dies_alone_after_exactly_max_crashes(lab: Lab) -> None:
    """Every worker that gets the poison dies with all it holds; the neighbours must survive each time."""
    app = await lab.app()
    healthy(app)
    poison, *neighbours = [str(each) for each in await app.enqueue_many("q", [None] * 30)]
    await lab.pass_time("1s")
    deaths = 0
    held: list[int] = []
    want = Want("q", 10, parse("10s"), max_crashes=3)
    while (await lab.item(poison)).state is not State.DEAD:
        deaths += 1
        leases = await lab.store.lease(LeaseRequest(f"ghost-{deaths}", (want,), f"nonce-{deaths}"))
        assert len(leases.items) == 1 or not any(item.alone for item in leases.items)
        assert deaths < 20, "the poison never dies"
        if poison not in {item.id for item in leases.items}:
            continue
        held.append(len(leases.items))
        # The living worker brings back what the ghost held; it is not to run the poison, so its queue is paused.
        await app.pause("q", reason="only the reaper is wanted")
        async with lab.working(app):
            await lab.pass_time("15s")
        await app.resume("q")
    found = await lab.history(poison)
    assert found.item.letter is not None
    assert (found.item.letter.reason, found.item.crashes) == ("max_crashes", 3)
    assert held == [10, 10, 1]
    assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED] * 3
    lab.clock.advance("1m")
    await lab.drain(app)
    assert {(await lab.item(item_id)).state for item_id in neighbours} == {State.DONE}


async def test_a_suspect_runs_alone_and_its_worker_takes_nothing_beside_it(lab: Lab) -> None:
    app = await lab.app()
    gate = asyncio.Event()
    running: list[str] = []
    beside: list[int] = []

    @app.handler("q", policy=POLICY, lease="10s", concurrency=10)
    async def handle(item: Item) -> None:
        running.append(item.id)
        if item.alone:
            beside.append(len(running))
            await gate.wait()
            beside.append(len(running))
        running.remove(item.id)

    suspect = await app.enqueue("q")
    for number in range(2):
        await lab.ghost("q", worker=f"ghost-{number}", ttl="1s")
        await app.pause("q", reason="only the reaper is wanted")
        async with lab.working(app):
            await lab.pass_time("10s")
        await app.resume("q")
    assert (await lab.item(suspect)).crashes == 2
    await app.enqueue_many("q", [None] * 5)
    async with lab.working(app):
        await lab.until(lambda: bool(beside))
        await app.enqueue_many("q", [None] * 5)
        await lab.pass_time("30s")
        gate.set()
        await lab.until(lambda: len(beside) == 2)
        await lab.pass_time("1s")
    assert beside == [1, 1]
    (row,) = (await app.tally()).queues
    assert row.done == 11


async def test_a_suspect_is_not_starved_by_a_busy_queue(lab: Lab) -> None:
    app = await lab.app()
    runs = healthy(app)
    suspect = await app.enqueue("q")
    for number in range(2):
        await lab.ghost("q", worker=f"ghost-{number}", ttl="1s")
        await app.pause("q", reason="only the reaper is wanted")
        async with lab.working(app):
            await lab.pass_time("10s")
        await app.resume("q")
    await app.enqueue_many("q", [None] * 60)
    await lab.drain(app)
    order = [item_id for item_id, _ in runs]
    assert (suspect, True) in runs
    assert order.index(suspect) < 30


@pytest.mark.parametrize("max_crashes", [1, 2])
async def test_crashes_and_errors_are_counted_apart(lab: Lab, max_crashes: int) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=3, max_crashes=max_crashes), lease="10s")
    async def fail() -> None:
        raise ValueError("no")

    item_id = await app.enqueue("q")
    if max_crashes > 1:
        await lab.ghost("q", ttl="1s")
    await lab.drain(app)
    item = await lab.item(item_id)
    assert item.letter is not None
    assert (item.letter.reason, item.errors) == ("max_attempts", 3)
    assert item.crashes == (1 if max_crashes > 1 else 0)


async def test_a_replay_forgives_crashes(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_crashes=1), lease="10s")
    async def handle(item: Item) -> None:
        runs.append(item.crashes)

    item_id = await app.enqueue("q")
    want = Want("q", 1, 1_000, max_crashes=1)
    await lab.store.lease(LeaseRequest("ghost", (want,), "nonce"))
    await lab.drain(app)
    assert (await lab.item(item_id)).state is State.DEAD
    await app.letters.replay(item_id, reason="the host had no memory")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert runs == [0]
    assert (found.item.state, found.item.replays, found.item.crashes) == (State.DONE, 1, 0)
    assert [attempt.ending for attempt in found.attempts] == [Ending.CRASHED, Ending.DONE]
