"""Priorities, delays and instants, and the lane of retries: what goes first, and that nobody waits for ever."""

from __future__ import annotations

from redrive.core.acts import Replay
from redrive.core.item import Item, NewItem, Priority
from redrive.core.lanes import CYCLE
from redrive.core.select import Ids, Match
from redrive.testing.conformance.kit import (
    SECOND,
    World,
    act,
    asking,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
    released,
)

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


def of(priority: Priority, count: int) -> list[NewItem]:
    return [new(priority=priority) for _ in range(count)]


async def test_priority_goes_before_age(world: World) -> None:
    low, normal, high = of(LOW, 2), of(NORMAL, 2), of(HIGH, 2)
    for some in (low, normal, high):
        await world.put(*some)
        world.tick(SECOND)
    assert ids(await world.lease(6)) == ids([*high, *normal, *low])


async def test_priority_is_kept_and_found(world: World) -> None:
    made = [new(priority=priority) for priority in (HIGH, NORMAL, LOW)]
    await world.put(*made)
    assert [(await world.item(item.id)).priority for item in made] == [HIGH, NORMAL, LOW]
    assert ids((await world.store.find(Match("priority", "=", "high"))).items) == (made[0].id,)
    leased = await world.lease(3)
    assert [item.priority for item in leased] == [HIGH, NORMAL, LOW]


async def test_priority_is_kept_over_a_retry_and_a_replay(world: World) -> None:
    low, high = new(priority=LOW), new(priority=HIGH)
    await world.put(low, high)
    items = await world.lease(2)
    assert ids(items) == (high.id, low.id)
    await world.finish(*(failed(item) for item in items))
    assert ids(await world.lease(2)) == (high.id, low.id)


async def test_priority_within_one_is_the_order_of_due_times(world: World) -> None:
    later, sooner = new(priority=HIGH, delay=2 * SECOND), new(priority=HIGH, delay=SECOND)
    await world.put(later, sooner)
    world.tick(5 * SECOND)
    assert ids(await world.lease(2)) == (sooner.id, later.id)


async def test_priority_never_goes_before_its_time(world: World) -> None:
    high, low = new(priority=HIGH, delay=SECOND), new(priority=LOW)
    await world.put(high, low)
    assert ids(await world.lease(2)) == (low.id,)


async def test_priority_low_gets_one_lease_in_a_cycle(world: World) -> None:
    """However much of high comes: of any CYCLE leases in a row one is low and one normal, if they wait."""
    low, normal = of(LOW, 3), of(NORMAL, 3)
    await world.put(*low, *normal, *of(HIGH, 3 * CYCLE))
    given: list[Item] = []
    while len(given) < 3 * CYCLE:
        items = await world.lease(7, turn=len(given))
        given.extend(items)
    for start in range(len(given) - CYCLE):
        window = [item.priority for item in given[start : start + CYCLE]]
        waiting = {item.id for item in (*low, *normal)} - {item.id for item in given[:start]}
        assert LOW in window or not waiting & {item.id for item in low}
        assert NORMAL in window or not waiting & {item.id for item in normal}


async def test_priority_of_one_at_a_time_is_that_of_many(world: World) -> None:
    """The turn says where in the cycle the worker is, however large its requests are."""
    await world.put(*of(HIGH, 30), *of(LOW, 5), *of(NORMAL, 5))
    ones: list[Item] = []
    for turn in range(25):
        ones.extend(await world.lease(1, turn=turn))
    words = [item.priority for item in ones]
    assert words.count(LOW) == 1
    assert words[CYCLE - 1] is LOW
    assert words[CYCLE // 2 - 1] is NORMAL


async def test_priority_of_followups_from_settle(world: World) -> None:
    item = await world.held()
    low, high = new(priority=LOW), new(priority=HIGH)
    settled = await world.settle(finished(item, follow_ups=[low, high]), then=asking(2))
    assert ids(next_leases(settled).items) == (high.id, low.id)


# --- due times ---


async def test_at_is_an_instant_by_the_clock_of_the_store(world: World) -> None:
    now = world.clock.now()
    made = new(at=now + 10 * SECOND)
    await world.put(made)
    assert (await world.item(made.id)).due_at == now + 10 * SECOND
    world.tick(10 * SECOND - 1)
    assert await world.lease(1) == ()
    world.tick(1)
    assert ids(await world.lease(1)) == (made.id,)


async def test_at_in_the_past_is_now(world: World) -> None:
    now = world.clock.now()
    made, both = new(at=5), new(at=now + SECOND, delay=3 * SECOND)
    await world.put(made, both)
    assert (await world.item(made.id)).due_at == now
    assert (await world.item(both.id)).due_at == now + 3 * SECOND


# --- the lane of retries ---


async def retried(world: World, count: int) -> tuple[str, ...]:
    """So many that failed once and are due again."""
    await world.put(*news(count))
    items = await world.lease(count)
    await world.finish(*(failed(item) for item in items))
    return ids(items)


async def test_retries_take_no_more_than_their_share(world: World) -> None:
    old = await retried(world, 10)
    world.tick(SECOND)
    fresh = news(10)
    await world.put(*fresh)
    items = await world.lease(8, retries=2)
    assert len([item for item in items if item.id in old]) == 2
    assert len([item for item in items if item.id in ids(fresh)]) == 6


async def test_retries_may_have_what_nobody_else_wants(world: World) -> None:
    old = await retried(world, 10)
    fresh = new()
    await world.put(fresh)
    items = await world.lease(8, retries=2)
    assert fresh.id in ids(items)
    assert len([item for item in items if item.id in old]) == 7
    assert await world.lease(0, retries=0) == ()
    assert len(await world.lease(8, retries=0)) == 3


async def test_retries_and_first_attempts_are_in_due_order_within_the_share(world: World) -> None:
    old = await retried(world, 2)
    world.tick(SECOND)
    fresh = news(2)
    await world.put(*fresh)
    assert ids(await world.lease(4)) == (*old, *ids(fresh))


async def test_retries_are_also_those_that_were_replayed(world: World) -> None:
    """The replay of an old batch must not take every slot of new work."""
    letters = await world.letters(6)
    await world.store.amend(Ids(ids(letters)), Replay(), act())
    world.tick(SECOND)
    fresh = news(6)
    await world.put(*fresh)
    items = await world.lease(6, retries=1)
    assert len([item for item in items if item.id in ids(fresh)]) == 5


async def test_retries_released_before_they_failed_are_none(world: World) -> None:
    await world.put(*news(3))
    items = await world.lease(3)
    await world.finish(*(failed(item) if turn == 0 else released(item) for turn, item in enumerate(items)))
    assert ids(await world.lease(2, retries=0)) == ids(items[1:])
