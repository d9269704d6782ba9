"""Limits inside `lease` and `put`, for the whole fleet: how many run, how many of a key, how fast, how many wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.core.acts import Cancel
from redrive.core.item import NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids, Match
from redrive.core.verbs import (
    QueueChange,
    Settlement,
    Want,
)
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    asking,
    dead,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
    released,
)
from redrive.testing.conformance.wait import returns, started, waiter


def keyed(key: str = "a", count: int = 1) -> list[NewItem]:
    return [new(terms=Terms(limit_key=key)) for _ in range(count)]


# --- how many run ---


async def test_max_running_bounds_what_is_leased(world: World) -> None:
    await world.set(QueueChange(max_running=3))
    await world.put(*news(10))
    assert len(await world.lease(2)) == 2
    assert len(await world.lease(5, worker="w-2")) == 1
    assert await world.lease(5, worker="w-3") == ()
    count = await world.count()
    assert (count.leased, count.ready, count.held) == (3, 7, 0)


async def test_max_running_gives_place_when_something_ends(world: World) -> None:
    await world.set(QueueChange(max_running=1))
    await world.put(*news(4))
    item = await world.lease_one()
    for make in (finished, dead, failed, released):
        settled = await world.settle(make(item), then=asking(5))
        (item,) = next_leases(settled).items
        assert await world.lease(5, worker="w-2") == ()


async def test_max_running_counts_what_has_lapsed(world: World) -> None:
    """The holder of an expired lease may still be at work: only the reaper ends it."""
    await world.set(QueueChange(max_running=1))
    await world.put(*news(2))
    await world.lease_one()
    world.tick(TTL + 1)
    assert await world.lease(5, worker="w-2") == ()
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 5)
    assert await world.lease(5, worker="w-2") == ()
    await world.finish(after_crash(lost))
    assert len(await world.lease(5, worker="w-2")) == 1


async def test_max_running_is_per_queue(world: World) -> None:
    await world.set(QueueChange(max_running=1))
    await world.put(*news(2), *news(2, queue="other"))
    wants = (Want(QUEUE, 2, TTL, 3), Want("other", 2, TTL, 3))
    assert len(await world.lease(wants=wants)) == 3


async def test_max_running_can_be_changed_while_work_goes_on(world: World) -> None:
    await world.put(*news(6))
    items = await world.lease(3)
    await world.set(QueueChange(max_running=2))
    assert await world.lease(5, worker="w-2") == ()
    await world.finish(finished(items[0]))
    assert await world.lease(5, worker="w-2") == ()
    await world.finish(finished(items[1]))
    assert len(await world.lease(5, worker="w-2")) == 1
    await world.set(QueueChange(max_running=None))
    assert len(await world.lease(5, worker="w-2")) == 2


async def test_max_running_holds_a_suspect_back_without_calling_for_it(world: World) -> None:
    """A worker that emptied itself for a suspect that may not run anyway would stand still for nothing."""
    await world.set(QueueChange(max_running=1))
    await world.suspect()
    plain = new()
    await world.put(plain)
    await world.set(QueueChange(max_running=None))
    other = await world.store.lease(asking(1, holding=1))
    assert (ids(other.items), other.suspects_due) == ((plain.id,), True)
    await world.set(QueueChange(max_running=1))
    leases = await world.store.lease(asking(1, worker="w-2", holding=1))
    assert (leases.items, leases.suspects_due) == ((), False)
    assert await world.lease(1, worker="w-3") == ()


async def test_wait_sleeps_while_max_running_is_reached(world: World) -> None:
    await world.set(QueueChange(max_running=1))
    await world.put(*news(2))
    item = await world.lease_one()
    waiting = waiter(world)
    await started(world, waiting)
    await world.finish(finished(item))
    await returns(waiting)
    assert len(await world.lease(1)) == 1


async def test_wait_hears_of_a_new_limit(world: World) -> None:
    await world.set(QueueChange(max_running=1))
    await world.put(*news(2))
    await world.lease_one()
    waiting = waiter(world)
    await started(world, waiting)
    await (await world.another()).configure(QUEUE, QueueChange(max_running=2))
    await returns(waiting)
    assert len(await world.lease(1)) == 1


# --- how many of a key ---


async def test_max_per_key_sets_aside_what_is_too_much(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    a, b, plain = keyed("a", 3), keyed("b", 1), new()
    await world.put(*a, *b, plain)
    assert ids(await world.lease(10)) == (a[0].id, b[0].id, plain.id)
    assert await world.holds(*a[1:]) == ["limit", "limit"]
    count = await world.count()
    assert (count.ready, count.held, count.leased) == (0, 2, 3)
    assert await world.blocked_by(a[1].id) == ()
    assert ids((await world.store.find(Match("hold", "=", "limit"))).items) == (a[2].id, a[1].id)
    await world.sound()


async def test_max_per_key_looks_on_until_the_request_is_full(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    a, others = keyed("a", 20), [*keyed("b"), *keyed("c")]
    await world.put(*a, *others)
    assert ids(await world.lease(3)) == (a[0].id, others[0].id, others[1].id)


async def test_max_per_key_frees_the_first_when_one_ends(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    a = keyed("a", 3)
    await world.put(*a)
    (item,) = await world.lease(10)
    await world.finish(finished(item))
    (item,) = await world.lease(10)
    assert item.id == a[1].id
    await world.finish(dead(item))
    assert await world.holds(a[2]) == [""]
    await world.sound()


@pytest.mark.parametrize("make", [failed, released, after_crash])
async def test_max_per_key_frees_the_first_when_one_comes_back(world: World, make: Callable[..., Settlement]) -> None:
    await world.set(QueueChange(max_per_key=1))
    a = keyed("a", 3)
    await world.put(*a)
    (item,) = await world.lease(10)
    await world.finish(make(item, delay=SECOND))
    assert await world.holds(*a) == ["", "", "limit"]
    assert ids(await world.lease(10)) == (a[1].id,)
    await world.sound()


async def test_max_per_key_is_never_passed_by_a_batch(world: World) -> None:
    await world.set(QueueChange(max_per_key=2))
    a = keyed("a", 6)
    await world.put(*a)
    assert ids(await world.lease(3)) == ids(a[:2])
    items = [await world.item(item.id) for item in a[:2]]
    settled = await world.settle(*(finished(item) for item in items), then=asking(10))
    assert ids(next_leases(settled).items) == ids(a[2:4])
    await world.sound()


async def test_max_per_key_counts_what_ran_before_it_was_set(world: World) -> None:
    a = keyed("a", 3)
    await world.put(*a)
    assert len(await world.lease(2)) == 2
    await world.set(QueueChange(max_per_key=2))
    assert await world.lease(10, worker="w-2") == ()
    assert await world.holds(a[2]) == ["limit"]
    await world.sound()


@pytest.mark.parametrize("limit", [None, 5])
async def test_max_per_key_that_is_changed_frees_all(world: World, limit: int | None) -> None:
    await world.set(QueueChange(max_per_key=1))
    a, b = keyed("a", 3), keyed("b", 3)
    await world.put(*a, *b)
    assert len(await world.lease(10)) == 2
    assert (await world.count()).held == 4
    await world.set(QueueChange(max_running=50))
    assert (await world.count()).held == 4
    await world.set(QueueChange(max_per_key=limit))
    assert (await world.count()).held == 0
    assert len(await world.lease(10, worker="w-2")) == 4
    await world.sound()


async def test_max_per_key_place_that_nobody_takes_is_passed_on(world: World) -> None:
    """The one that was let go next is cancelled before it runs: those behind it must not wait for ever."""
    await world.set(QueueChange(max_per_key=1))
    a = keyed("a", 3)
    await world.put(*a)
    (item,) = await world.lease(10)
    await world.finish(finished(item))
    await world.store.amend(Ids((a[1].id,)), Cancel(), act())
    assert ids(await world.lease(10)) == (a[2].id,)
    await world.sound()


async def test_max_per_key_of_one_aside_that_is_cancelled_gives_no_place(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    a = keyed("a", 3)
    await world.put(*a)
    await world.lease(10)
    await world.store.amend(Ids((a[1].id,)), Cancel(), act())
    assert await world.holds(a[2]) == ["limit"]
    await world.sound()


async def test_max_per_key_counts_an_expired_lease(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    a = keyed("a", 2)
    await world.put(*a)
    await world.lease(1)
    world.tick(TTL + 1)
    assert await world.lease(10, worker="w-2") == ()
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 5)
    await world.finish(dead(lost))
    assert ids(await world.lease(10)) == (a[1].id,)


async def test_max_per_key_of_suspects(world: World) -> None:
    """A suspect whose key has no place is passed over as any other."""
    a = keyed("a", 2)
    await world.put(a[0])
    for _ in range(2):
        await world.crashed(await world.grab(a[0].id))
    await world.put(a[1])
    await world.set(QueueChange(max_per_key=1))
    leases = await world.store.lease(asking(5, holding=1))
    assert (ids(leases.items), leases.suspects_due) == ((a[1].id,), True)
    again = await world.store.lease(asking(5, worker="w-2"))
    assert (again.items, again.suspects_due) == ((), False)
    assert await world.holds(a[0]) == ["limit"]
    await world.finish(finished(leases.items[0]))
    assert ids(await world.lease(5, worker="w-2")) == (a[0].id,)
    await world.sound()


async def test_max_per_key_with_order_keys(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    both = Terms(order_key="o", limit_key="a")
    running, head, follower = keyed("a")[0], new(terms=both), new(terms=both)
    await world.put(running, head, follower)
    assert ids(await world.lease(10)) == (running.id,)
    assert await world.holds(head, follower) == ["limit", "order"]
    await world.finish(finished(await world.item(running.id)))
    assert ids(await world.lease(10)) == (head.id,)
    await world.finish(finished(await world.item(head.id)))
    assert ids(await world.lease(10)) == (follower.id,)
    await world.sound()


async def test_wait_returns_when_a_set_aside_item_is_free(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    await world.put(*keyed("a", 2))
    (item,) = await world.lease(10)
    waiting = waiter(world)
    await started(world, waiting)
    await world.finish(finished(item))
    await returns(waiting)


# --- together ---


async def test_limits_together_give_the_least(world: World) -> None:
    await world.set(QueueChange(max_running=5, rate=Rate(1, 1_000, 4), max_per_key=3))
    await world.put(*keyed("a", 10))
    assert len(await world.lease(10)) == 3
    # What was set aside has cost nothing of the rate.
    await world.put(*news(5))
    assert len(await world.lease(10)) == 1
    world.tick(60 * SECOND)
    assert len(await world.lease(10)) == 1
