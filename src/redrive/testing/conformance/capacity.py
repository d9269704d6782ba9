"""The capacity of a queue: what is too much is refused with its fill, and what was accepted is never lost for it."""

from __future__ import annotations

import pytest

from redrive.core.acts import Cancel, Replay
from redrive.core.item import Terms
from redrive.core.select import Ids
from redrive.core.verbs import QueueChange, QueueSettings
from redrive.errors import ConfigError, QueueFull
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    World,
    act,
    dead,
    failed,
    new,
    news,
)


async def test_capacity_refuses_what_is_too_much(world: World) -> None:
    await world.set(QueueChange(capacity=3))
    await world.put(*news(2))
    two = news(2)
    with pytest.raises(QueueFull) as caught:
        await world.store.put(two)
    assert (caught.value.queue, caught.value.fill, caught.value.capacity) == (QUEUE, 2, 3)
    assert [await world.history(item.id) for item in two] == [None, None]
    await world.put(new())
    with pytest.raises(QueueFull):
        await world.put(new())
    assert (await world.count()).ready == 3


async def test_capacity_refuses_the_whole_call(world: World) -> None:
    await world.set(QueueChange(capacity=1))
    one, other = news(2), new(queue="other")
    with pytest.raises(QueueFull):
        await world.store.put([other, *one])
    assert await world.history(other.id) is None


async def test_capacity_counts_what_waits_or_runs(world: World) -> None:
    """Held and leased too; what is done, dead or cancelled makes place."""
    await world.set(QueueChange(capacity=4, order="park"))
    line = [new(terms=Terms(order_key="a")) for _ in range(3)]
    await world.put(*line)
    delayed = new(delay=60 * SECOND)
    await world.put(delayed)
    item = await world.lease_one()
    with pytest.raises(QueueFull) as caught:
        await world.put(new())
    assert caught.value.fill == 4
    await world.finish(dead(item))
    await world.put(new())
    with pytest.raises(QueueFull):
        await world.put(new())
    await world.store.amend(Ids((delayed.id,)), Cancel(), act())
    await world.put(new())


async def test_capacity_lets_repeats_in(world: World) -> None:
    """A put whose reply was lost must not be told that there is no room for what is there."""
    await world.set(QueueChange(capacity=1))
    made = new()
    await world.put(made)
    assert (await world.store.put([made])).already == (made.id,)


async def test_capacity_lets_follow_ups_and_replays_in(world: World) -> None:
    """Work that was accepted is never lost for want of room."""
    letter = await world.letter()
    await world.set(QueueChange(capacity=1))
    item = await world.held()
    child = new()
    await world.finish(failed(item, follow_ups=[child]))
    await world.store.amend(Ids((letter.id,)), Replay(), act())
    assert (await world.count()).ready == 3
    with pytest.raises(QueueFull) as caught:
        await world.put(new())
    assert caught.value.fill == 3


async def test_capacity_below_what_is_there_is_refused(world: World) -> None:
    await world.put(*news(3))
    await world.lease(1)
    with pytest.raises(ConfigError) as caught:
        await world.set(QueueChange(capacity=2, max_running=7))
    assert caught.value.field == "capacity"
    assert await world.store.settings(QUEUE) == QueueSettings()
    await world.set(QueueChange(capacity=3))


async def test_capacity_is_per_queue_and_can_be_lifted(world: World) -> None:
    await world.set(QueueChange(capacity=1))
    await world.put(new(), new(queue="other"), new(queue="other"))
    await world.set(QueueChange(capacity=None))
    await world.put(*news(5))
