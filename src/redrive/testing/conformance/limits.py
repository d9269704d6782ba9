"""Limits inside `lease` and `put`, for the whole fleet: how many run, how many of a key, how fast, how many wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.core.item import NewItem, Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids, Match
from redrive.core.verbs import Cancel, QueueChange, QueueSettings, Replay, Settlement, Want
from redrive.errors import ConfigError, QueueFull
from redrive.testing.conformance.kit import (
    DURABLE,
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
    fresh,
    ids,
    new,
    news,
    next_leases,
    released,
)
from redrive.testing.conformance.wait import returns, started, waiter


def keyed(key: str = "a", count: int = 1) -> list[NewItem]:
    return [new(terms=Terms(limit_key=key)) for _ in range(count)]


# --- settings ---


async def test_settings_of_a_new_queue_are_none(world: World) -> None:
    assert await world.store.settings("never heard of") == QueueSettings()
    assert (await world.store.tally()).queues == ()
    await world.put(new())
    assert await world.store.settings(QUEUE) == QueueSettings()


async def test_settings_are_kept_and_seen_by_every_handle(world: World) -> None:
    wanted = QueueSettings(3, 2, Rate(100, 60_000, 5), 1_000, "park", "gentle", "smtp", 7 * SECOND, SECOND, 0.25)
    change = QueueChange(
        max_running=3,
        max_per_key=2,
        rate=Rate(100, 60_000, 5),
        capacity=1_000,
        order="park",
        policy="gentle",
        gate="smtp",
        keep=7 * SECOND,
        keep_results=SECOND,
        retry_share=0.25,
    )
    await world.set(change)
    other = await world.another()
    assert await other.settings(QUEUE) == wanted
    assert (await world.count()).settings == wanted
    await other.configure(QUEUE, QueueChange(max_per_key=None, policy=""))
    left = await world.store.settings(QUEUE)
    assert (left.max_running, left.max_per_key, left.policy, left.gate) == (3, None, "", "smtp")


async def test_settings_and_pause_leave_each_other_alone(world: World) -> None:
    await world.set(QueueChange(paused=True, by="ada", reason="down"))
    await world.set(QueueChange(max_running=1))
    count = await world.count()
    assert (count.paused, count.paused_by, count.settings.max_running) == (True, "ada", 1)
    await world.set(QueueChange(paused=False))
    assert (await world.store.settings(QUEUE)).max_running == 1


async def test_settings_survive_reopening(world: World) -> None:
    world.needs(DURABLE)
    await world.set(QueueChange(max_running=3, rate=Rate(5), retry_share=0.5, order="skip"))
    await world.store.close()
    world.store = await world.another()
    assert await world.store.settings(QUEUE) == QueueSettings(
        max_running=3, rate=Rate(5), retry_share=0.5, order="skip"
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (QueueChange(max_running=0), "max_running"),
        (QueueChange(max_per_key=-1), "max_per_key"),
        (QueueChange(capacity=0), "capacity"),
        (QueueChange(rate=Rate(0)), "rate"),
        (QueueChange(rate=Rate(1, 0)), "rate"),
        (QueueChange(rate=Rate(1, 1, 0)), "rate"),
        (QueueChange(keep=-1), "keep"),
        (QueueChange(keep_results=-1), "keep_results"),
        (QueueChange(order="sideways"), "order"),  # type: ignore[arg-type]  # over a wire anything may come
        (QueueChange(retry_share=0), "retry_share"),
        (QueueChange(retry_share=1.5), "retry_share"),
        (QueueChange(policy="\0"), "policy"),
    ],
)
async def test_settings_that_cannot_be_kept_are_refused(world: World, change: QueueChange, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await world.set(change)
    assert caught.value.field == field
    assert (await world.store.tally()).queues == ()


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
    for number, make in enumerate((finished, dead)):
        (item,) = await world.lease(10)
        assert item.id == a[number].id
        await world.finish(make(item))
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


# --- how fast ---


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


# --- how many may wait ---


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
