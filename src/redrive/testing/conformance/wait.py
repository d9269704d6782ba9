"""`wait`: back when something may be due, at the latest after the timeout; never deaf to another handle's put."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from redrive.core.acts import Replay
from redrive.core.select import Ids
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import (
    PATIENCE,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    failed,
    ids,
    new,
    released,
)

LONG = 3_600 * SECOND
BEGIN = 5.0
"""Real seconds in which a waiter has begun to wait on the clock, if it ever does."""


async def returns(waiting: asyncio.Future[None]) -> None:
    """In real time, without any fake time passing."""
    async with asyncio.timeout(PATIENCE):
        await waiting


def waiter(world: World, *queues: str, timeout: int = LONG) -> asyncio.Future[None]:
    return asyncio.ensure_future(world.store.wait(queues or (QUEUE,), timeout))


async def started(world: World, waiting: asyncio.Future[None]) -> None:
    """Until the waiter really waits: an early return would prove nothing about the signal that the test sends.

    An engine may wait on something else than the clock, so this gives up looking after a while: the signal must get
    through before the wait has begun as well.
    """
    await asleep(world, waiting)
    assert not waiting.done(), "nothing is due, but wait came back at once"


async def asleep(world: World, waiting: asyncio.Future[None]) -> None:
    """Until nothing more happens without a signal or time, however busy the machine is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BEGIN):
            while not (world.clock.sleepers or waiting.done()):
                await asyncio.wait({waiting}, timeout=0.001)


async def test_wait_returns_at_once_if_something_is_due(world: World) -> None:
    await world.put(new())
    await returns(waiter(world))


@pytest.mark.parametrize("overdue", [0, 3_600 * SECOND])
async def test_wait_returns_at_once_if_a_crashed_item_is_due(world: World, overdue: int) -> None:
    """It became due between the worker's lease and its wait: nobody will signal again, however long that was."""
    item = await world.held()
    await world.finish(after_crash(item, delay=SECOND))
    world.tick(SECOND + overdue)
    await returns(waiter(world))


async def test_wait_returns_on_a_put(world: World) -> None:
    waiting = waiter(world)
    await started(world, waiting)
    await world.put(new())
    await returns(waiting)


async def test_wait_returns_on_a_put_through_another_handle(world: World) -> None:
    other = await world.another()
    waiting = waiter(world)
    await started(world, waiting)
    made = new()
    await other.put([made])
    await returns(waiting)
    assert ids(await world.lease(1)) == (made.id,)


async def test_wait_returns_on_a_put_to_any_of_its_queues(world: World) -> None:
    waiting = waiter(world, "a", "b", "c")
    await started(world, waiting)
    await world.put(new(queue="b"))
    await returns(waiting)


async def test_wait_returns_on_what_a_settle_makes_due(world: World) -> None:
    item = await world.held()
    for make in (failed, released, after_crash):
        waiting = waiter(world)
        await started(world, waiting)
        await world.finish(make(item))
        await returns(waiting)
        item = await world.lease_one()


async def test_wait_returns_on_a_follow_up(world: World) -> None:
    item = await world.held()
    waiting = waiter(world, "replies")
    await started(world, waiting)
    await world.settle(failed(item, delay=LONG, follow_ups=[new(queue="replies")]))
    await returns(waiting)


async def test_wait_returns_on_a_replay(world: World) -> None:
    letter = await world.letter()
    waiting = waiter(world)
    await started(world, waiting)
    await world.store.amend(Ids((letter.id,)), Replay(), act())
    await returns(waiting)


async def test_wait_returns_on_a_resume(world: World) -> None:
    await world.put(new())
    await world.store.configure(QUEUE, QueueChange(paused=True))
    waiting = waiter(world)
    await world.store.configure(QUEUE, QueueChange(paused=False))
    await returns(waiting)
    assert len(await world.lease(1)) == 1


async def test_wait_returns_when_a_delayed_item_becomes_due(world: World) -> None:
    """Nobody signals when time passes: the waiter itself must know the due time."""
    await world.put(new(delay=50 * SECOND))
    waiting = waiter(world)
    await started(world, waiting)
    world.tick(50 * SECOND)
    await returns(waiting)
    assert len(await world.lease(1)) == 1


async def test_wait_learns_of_an_earlier_due_time(world: World) -> None:
    """A put of delayed work shortens a wait that has begun."""
    other = await world.another()
    waiting = waiter(world)
    await started(world, waiting)
    await other.put([new(delay=5 * SECOND)])
    waited = await _until_due(world, waiting)
    assert waited <= 20 * SECOND
    assert len(await world.lease(1)) == 1


async def _until_due(world: World, waiting: asyncio.Future[None]) -> int:
    """Pass fake seconds until a worker's loop of lease and wait would get the item; returns how many."""
    start = world.clock.now()
    async with asyncio.timeout(PATIENCE):
        while True:
            await asyncio.wait({waiting}, timeout=0.02)
            # It may have been woken and look at the store: however long that takes, it takes no fake time.
            await asleep(world, waiting)
            if waiting.done() and world.clock.now() - start >= 5 * SECOND:
                return world.clock.now() - start
            if waiting.done():
                waiting = waiter(world)
            world.tick(SECOND)


async def test_wait_ends_after_its_timeout(world: World) -> None:
    await world.drive(world.store.wait((QUEUE,), 7 * SECOND), SECOND)
    assert world.clock.sleepers == 0


async def test_wait_for_no_time_returns(world: World) -> None:
    await returns(waiter(world, timeout=0))


async def test_wait_for_an_unknown_queue_ends_after_its_timeout(world: World) -> None:
    await world.drive(world.store.wait(("never heard of",), SECOND), SECOND)
    assert (await world.store.tally()).queues == ()


async def test_wait_can_be_cancelled(world: World) -> None:
    """A worker that stops does not wait for its timeout, and leaves nothing behind that a later put could trip over."""
    waiting = waiter(world)
    await started(world, waiting)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=PATIENCE)
    assert waiting.cancelled()
    assert world.clock.sleepers == 0
    await world.put(new())


async def test_wait_wakes_every_waiter(world: World) -> None:
    other = await world.another()
    one, two = waiter(world), asyncio.ensure_future(other.wait((QUEUE,), LONG))
    await started(world, one)
    await world.put(new())
    await returns(one)
    await returns(two)


async def test_wait_is_not_needed_for_leases(world: World) -> None:
    item = await world.held()
    waiting = waiter(world)
    await started(world, waiting)
    await world.store.extend([], TTL)
    await world.finish(released(item))
    await returns(waiting)
    assert len(await world.lease(1)) == 1
