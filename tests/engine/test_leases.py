"""Leases while handlers run: kept, lost, and the deadline sweep."""

from __future__ import annotations

import asyncio
import threading

import pytest

from redrive import Item, Policy, constant, never
from redrive.core.decide import Charge, ToReady
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.core.verbs import Settlement
from redrive.events import Finished, LeaseLost, Reclaimed, SettleRefused, Started
from redrive.testing.faults import Fault
from tests.support.lab import Lab, Seen


async def test_the_keeper_prolongs_a_handler_that_runs_many_leases(lab: Lab) -> None:
    app, other = await lab.app(), await lab.app()
    gate = asyncio.Event()
    runs: list[str] = []

    async def long(item: Item) -> None:
        runs.append(item.id)
        await gate.wait()

    for each in (app, other):
        each.handler("q", lease="10s")(long)
    seen = Seen(app)
    item_id = await app.enqueue("q")
    async with lab.working(app), lab.working(other):
        await lab.until(lambda: bool(runs))
        await lab.pass_time("45s")
        assert (await lab.item(item_id)).state is State.LEASED
        gate.set()
        await lab.until(lambda: bool(seen.of(Finished)) or len(runs) > 1)
    item = await lab.item(item_id)
    assert runs == [item_id]
    assert (item.state, item.deliveries, item.crashes) == (State.DONE, 1, 0)


async def test_a_sync_handler_is_kept_alive_too(lab: Lab) -> None:
    app = await lab.app()
    gate, started = threading.Event(), threading.Event()
    runs: list[str] = []

    @app.handler("q", lease="10s")
    def long(item: Item) -> None:
        runs.append(item.id)
        started.set()
        gate.wait(20)

    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.until(started.is_set)
        await lab.pass_time("25s")
        assert (await lab.item(item_id)).state is State.LEASED
        gate.set()
        seen = Seen(app)
        await lab.until(lambda: bool(seen.of(Finished)))
    assert runs == [item_id]
    assert (await lab.item(item_id)).state is State.DONE


async def test_a_lost_lease_cancels_the_handler_and_its_word_is_not_sent(lab: Lab) -> None:
    """The worker is cut off from the store for longer than its lease; another takes the item over."""
    app, cut = await lab.faulty()
    other = await lab.app()
    cancelled: list[int] = []
    gate = asyncio.Event()

    @app.handler("q", lease="10s", policy=Policy(backoff=constant("1s")))
    async def stubborn(item: Item) -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.append(item.deliveries)
            raise

    @other.handler("q", lease="10s", policy=Policy(backoff=constant("1s")))
    async def quick(item: Item) -> int:
        return item.deliveries

    seen, seen_by_other = Seen(app), Seen(other)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.quiet()
        for verb in ("extend", "reclaim", "lease"):
            cut.fail(verb)
        async with lab.working(other):
            await lab.until(lambda: any(event.state == "done" for event in seen_by_other.of(Finished)))
            assert cancelled == []
            before = await lab.history(item_id)
            cut.heal()
            await lab.until(lambda: bool(seen.of(LeaseLost)))
            await lab.quiet()
    assert cancelled == [1]
    assert [event.delivery for event in seen.of(LeaseLost)] == [1]
    assert seen.of(SettleRefused) == []
    assert [event.lost_by for event in seen_by_other.of(Reclaimed)] == [before.attempts[0].worker]
    assert await lab.history(item_id) == before
    assert before.item.state is State.DONE


@pytest.mark.parametrize("finder", ["keeper", "reaper"])
@pytest.mark.parametrize("ends", ["before", "after"])
async def test_a_living_worker_takes_its_own_lapsed_lease_back(lab: Lab, finder: str, ends: str) -> None:
    """A closed lid, a blocked loop, a jump of the clock: nobody was lost, nobody is charged, nothing runs twice."""
    app, cut = await lab.faulty()
    gate = asyncio.Event()
    runs: list[int] = []

    @app.handler("q", lease="10s", policy=Policy(max_crashes=1))
    async def long(item: Item) -> None:
        runs.append(item.deliveries)
        await gate.wait()

    seen = Seen(app)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.until(lambda: bool(runs))
        others = {"keeper": "reclaim", "reaper": "extend"}
        cut.fail("extend")
        cut.fail("reclaim")
        if ends == "before":
            # It has ended, but its result cannot be written while the lease lapses.
            cut.fail("settle")
            gate.set()
        await lab.pass_time("11s")
        assert (await lab.item(item_id)).state is State.LEASED
        for verb in {"extend", "reclaim"} - {others[finder]}:
            cut.heal(verb)
        await lab.pass_time("15s")
        cut.heal()
        await lab.pass_time("15s")
        gate.set()
        await lab.until(lambda: any(event.state == "done" for event in seen.of(Finished)))
    item = await lab.item(item_id)
    assert runs == [1]
    assert (item.state, item.crashes) == (State.DONE, 0)
    assert seen.of(LeaseLost) == []
    assert seen.of(Reclaimed) == []


async def test_a_worker_that_gets_its_own_lost_item_again_stops_the_old_run_and_leaks_no_slot(lab: Lab) -> None:
    """Its lease lapses unnoticed, another reaper brings the item back, and it leases it again."""
    app, cut = await lab.faulty()
    gate = asyncio.Event()
    running: set[int] = set()
    cancelled: list[int] = []

    @app.handler("q", lease="10s", concurrency=2, policy=Policy(backoff=constant("1s"), max_crashes=100))
    async def long(item: Item) -> None:
        running.add(item.deliveries)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.append(item.deliveries)
            raise
        finally:
            running.discard(item.deliveries)

    seen = Seen(app)
    first = await app.enqueue("q")
    async with lab.working(app):
        await lab.until(lambda: 1 in running)
        for verb in ("extend", "reclaim"):
            cut.fail(verb)
        await lab.pass_time("11s")
        (lapsed,) = await lab.store.reclaim("other", ["q"], 30_000, 10)
        back = Settlement(lapsed.id, lapsed.deliveries, ToReady(0, Charge.CRASH))
        await lab.store.settle([back])
        await lab.until(lambda: 3 in running)
        await lab.quiet()
        assert cancelled == [1]
        assert running == {3}
        assert [event.delivery for event in seen.of(LeaseLost)] == [1]
        cut.heal()
        gate.set()
        await lab.until(lambda: any(event.state == "done" for event in seen.of(Finished)))
        gate.clear()
        await app.enqueue_many("q", [None, None])
        # Both slots are free again: nobody ends before both have started. A message may have to tell the worker first.
        await lab.until(lambda: len(seen.of(Started)) == 4)
        gate.set()
        await lab.until(lambda: len([event for event in seen.of(Finished) if event.state == "done"]) == 3)
    assert (await lab.item(first)).deliveries == 3


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_handler_that_runs_past_its_timeout_fails_with_a_timeout(lab: Lab, sync: bool) -> None:
    app = await lab.app()
    gate = threading.Event()
    started: list[int] = []

    async def hang() -> None:
        started.append(1)
        await asyncio.Event().wait()

    def hang_in_thread() -> None:
        started.append(1)
        gate.wait(20)

    app.handler("q", timeout="5s", policy=Policy(backoff=never()))(hang_in_thread if sync else hang)
    seen = Seen(app)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.until(lambda: bool(started))
        await lab.until(lambda: bool(seen.of(Finished)))
        gate.set()
    found = await lab.history(item_id)
    assert found.item.letter is not None
    assert found.item.letter.failure.type == "TimeoutError"
    assert "5s" in found.item.letter.failure.text
    assert [attempt.ending for attempt in found.attempts] == [Ending.FAILED]
    # One sweep for all handlers: late by at most a period, never early.
    assert 5_000 <= found.attempts[0].ran <= 6_100


async def test_a_thread_past_its_timeout_keeps_its_slot_until_it_ends(lab: Lab) -> None:
    """A thread cannot be stopped: giving its slot away would run more handlers at once than allowed."""
    app = await lab.app()
    gate = threading.Event()
    running: list[int] = []
    most: list[int] = []

    @app.handler("q", timeout="5s", concurrency=1, policy=Policy(backoff=constant("1s"), max_attempts=2))
    def hang() -> None:
        running.append(1)
        most.append(len(running))
        gate.wait(20)
        running.pop()

    seen = Seen(app)
    await app.enqueue("q")
    async with lab.working(app):
        await lab.until(lambda: bool(seen.of(Finished)))
        await lab.pass_time("10s")
        assert most == [1]
        gate.set()
        await lab.until(lambda: len(seen.of(Finished)) == 2)
    assert most == [1, 1]


async def test_a_handler_that_survives_its_cancellation_and_returns_is_done(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", timeout="1s", policy=Policy(backoff=never()))
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cleaned up"
        return "never"

    item_id = await app.enqueue("q")
    await lab.drain(app)
    assert await app.wait(item_id) == "cleaned up"


async def test_an_item_older_than_max_age_dies_before_it_runs(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q", policy=Policy(max_age="5s"))
    async def never_reached() -> None:
        runs.append(1)

    item_id = await app.enqueue("q", delay="10s")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert runs == []
    assert found.item.letter is not None
    assert found.item.letter.reason == "max_age"
    assert found.item.letter.failure.type == "redrive.Expired"
    assert [attempt.ending for attempt in found.attempts] == [Ending.EXPIRED]
    assert found.item.errors == 0


async def test_an_error_at_max_age_is_final(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=constant("2s"), max_age="5s", max_attempts=None))
    async def fail() -> None:
        raise ValueError("no")

    item_id = await app.enqueue("q")
    await lab.drain(app)
    item = await lab.item(item_id)
    assert item.letter is not None
    assert item.letter.reason == "max_age"


async def test_a_replay_starts_the_age_anew(lab: Lab) -> None:
    app = await lab.app()
    broken = [True]

    @app.handler("q", policy=Policy(backoff=never(), max_age="1m"))
    async def work() -> str:
        if broken:
            raise ValueError("no")
        return "done"

    item_id = await app.enqueue("q")
    await lab.drain(app)
    lab.clock.advance("2h")
    broken.clear()
    await app.letters.replay(item_id, reason="fixed")
    await lab.drain(app)
    assert await app.wait(item_id) == "done"


async def test_a_repeated_extend_of_unknown_outcome_loses_nothing(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    gate = asyncio.Event()

    @app.handler("q", lease="10s")
    async def long() -> None:
        await gate.wait()

    seen = Seen(app)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        faulty.next("extend", Fault.UNKNOWN, Fault.UNKNOWN_UNDONE, Fault.DUPLICATE)
        await lab.pass_time("1m")
        gate.set()
        await lab.until(lambda: bool(seen.of(Finished)))
    item = await lab.item(item_id)
    assert (item.state, item.deliveries) == (State.DONE, 1)
