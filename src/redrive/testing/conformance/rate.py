"""The rate of a queue: a burst and then one each interval, counted over the whole fleet."""

from __future__ import annotations

from redrive.core.meters import Rate
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import (
    SECOND,
    World,
    asking,
    finished,
    fresh,
    news,
    next_leases,
)
from redrive.testing.conformance.wait import returns, started, waiter


async def test_rate_gives_a_burst_and_then_one_by_one(world: World) -> None:
    await world.set(QueueChange(rate=Rate(10, 1_000, 3)))
    await world.put(*news(20))
    assert len(await world.lease(10)) == 3
    assert await world.lease(10) == ()
    world.tick(99)
    assert await world.lease(10) == ()
    world.tick(1)
    assert len(await world.lease(10)) == 1
    world.tick(250)
    assert len(await world.lease(10)) == 2
    world.tick(50)
    assert len(await world.lease(10)) == 1
    world.tick(60 * SECOND)
    assert len(await world.lease(10)) == 3


async def test_rate_tells_when_it_gives_the_next(world: World) -> None:
    """In the tally, whatever is ready: nobody has to guess from counts what keeps an item."""
    await world.set(QueueChange(rate=Rate(3, 1_000, 2)))
    await world.put(*news(9))
    assert (await world.count()).rate_at is None
    begun = world.clock.now()
    assert len(await world.lease(1)) == 1
    assert (await world.count()).rate_at is None
    assert len(await world.lease(9)) == 1
    # A third of a second is no whole number of milliseconds: not too early.
    assert (await world.count()).rate_at == begun + 334
    world.tick(333)
    assert (await world.count()).rate_at == begun + 334
    assert await world.lease(9) == ()
    world.tick(1)
    assert (await world.count()).rate_at is None
    assert len(await world.lease(9)) == 1
    await world.set(QueueChange(rate=Rate(5)))
    assert (await world.count()).rate_at is None
    await world.lease(9)
    assert (await world.count()).rate_at == world.clock.now() + 200
    await world.set(QueueChange(rate=None))
    assert (await world.count()).rate_at is None


async def test_rate_is_counted_over_the_whole_fleet(world: World) -> None:
    await world.set(QueueChange(rate=Rate(4)))
    await world.put(*news(20))
    other = await world.another()
    assert len(await world.lease(3)) == 3
    assert len((await other.lease(asking(3, worker="w-2"))).items) == 1


async def test_rate_never_gives_more_than_it_says(world: World) -> None:
    """Over ten seconds of greedy requests: the burst and one each interval, not one more."""
    await world.set(QueueChange(rate=Rate(7, 1_000, 2)))
    await world.put(*news(100))
    given = 0
    for _ in range(1_000):
        world.tick(10)
        given += len(await world.lease(5, worker=fresh("w")))
    assert 70 <= given <= 72


async def test_rate_counts_suspects_and_then(world: World) -> None:
    await world.suspect()
    await world.put(*news(3))
    await world.set(QueueChange(rate=Rate(1, 1_000, 2)))
    (item,) = await world.lease(5)
    assert item.alone
    settled = await world.settle(finished(item), then=asking(5))
    assert len(next_leases(settled).items) == 1


async def test_rate_that_is_new_begins_full_and_the_same_goes_on(world: World) -> None:
    await world.put(*news(20))
    await world.set(QueueChange(rate=Rate(1, 1_000, 2)))
    assert len(await world.lease(10)) == 2
    await world.set(QueueChange(rate=Rate(1, 1_000, 2)))
    assert await world.lease(10) == ()
    await world.set(QueueChange(rate=Rate(1, 1_000, 3)))
    assert len(await world.lease(10)) == 3
    await world.set(QueueChange(rate=None))
    assert len(await world.lease(10)) == 10


async def test_rate_costs_those_who_wait_nothing(world: World) -> None:
    await world.set(QueueChange(rate=Rate(1)))
    made = news(2)
    await world.put(*made)
    await world.lease(1)
    before = await world.store.get(made[1].id)
    assert await world.lease(5) == ()
    assert await world.store.get(made[1].id) == before


async def test_wait_knows_when_the_rate_gives_again(world: World) -> None:
    await world.set(QueueChange(rate=Rate(1, 10_000, 1)))
    await world.put(*news(2))
    await world.lease(2)
    waiting = waiter(world)
    await started(world, waiting)
    world.tick(10 * SECOND)
    await returns(waiting)
    assert len(await world.lease(1)) == 1
