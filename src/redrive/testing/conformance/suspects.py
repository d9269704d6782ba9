"""`lease` and crashes: an item whose next crash would kill it runs alone, so that a neighbour is never condemned.

Plain items have fewer than `want.max_crashes - 1` crashes; all others are suspects.
"""

from __future__ import annotations

from redrive.core.verbs import QueueChange, Want
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    after_crash,
    asking,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
    released,
)


async def test_suspects_are_leased_first_and_alone(world: World) -> None:
    made = news(3)
    suspect = await world.suspect(crashes=2)
    await world.put(*made)
    leases = await world.store.lease(asking(10, max_crashes=3))
    assert ids(leases.items) == (suspect.id,)
    assert leases.items[0].alone
    assert (await world.item(suspect.id)).alone


async def test_suspects_are_not_given_in_company(world: World) -> None:
    """A worker that has something in hand gets plain items and learns that a suspect waits."""
    suspect = await world.suspect(crashes=2)
    made = news(3)
    await world.put(*made)
    leases = await world.store.lease(asking(10, holding=1))
    assert ids(leases.items) == ids(made)
    assert leases.suspects_due
    assert not any(item.alone for item in leases.items)
    assert (await world.item(suspect.id)).deliveries == suspect.deliveries


async def test_suspects_begin_one_crash_before_the_last(world: World) -> None:
    """With max_crashes 3, one crash is still plain and two are not."""
    once, other = await world.suspect(crashes=1), new()
    await world.put(other)
    assert set(ids(await world.lease(10, max_crashes=3))) == {once.id, other.id}


async def test_suspects_are_judged_by_the_want(world: World) -> None:
    item = await world.suspect(crashes=1)
    leases = await world.store.lease(asking(10, max_crashes=2, holding=1))
    assert leases.items == ()
    assert leases.suspects_due
    (plain,) = (await world.store.lease(asking(10, max_crashes=3, holding=1))).items
    assert plain.id == item.id
    assert not plain.alone


async def test_suspects_with_a_limit_of_one_crash_are_all_items(world: World) -> None:
    first, second = news(2)
    await world.put(first, second)
    leases = await world.store.lease(asking(10, max_crashes=1))
    assert ids(leases.items) == (first.id,)
    assert leases.items[0].alone


async def test_suspects_beyond_the_limit_are_leased_alone_too(world: World) -> None:
    """Crashes in company can exceed the limit without killing; the item still gets its lone run."""
    item = await world.suspect(crashes=4)
    (alone,) = await world.lease(10, max_crashes=3)
    assert (alone.id, alone.alone) == (item.id, True)


async def test_suspects_are_given_one_at_a_time(world: World) -> None:
    one, two = await world.suspect(queue="a"), await world.suspect(queue="b")
    wants = [Want("a", 5, TTL, 3), Want("b", 5, TTL, 3)]
    (first,) = (await world.store.lease(asking(wants=wants, worker="w-1"))).items
    (second,) = (await world.store.lease(asking(wants=wants, worker="w-2"))).items
    assert {first.id, second.id} == {one.id, two.id}
    assert first.alone
    assert second.alone


async def test_suspects_of_any_want_come_before_plain_items(world: World) -> None:
    suspect = await world.suspect(queue="b")
    await world.put(new(queue="a"))
    wants = [Want("a", 5, TTL, 3), Want("b", 5, TTL, 3)]
    assert ids((await world.store.lease(asking(wants=wants))).items) == (suspect.id,)


async def test_suspects_keep_their_worker_to_themselves(world: World) -> None:
    """A worker that holds a lone lease gets nothing more, whatever it says about what it holds."""
    await world.suspect()
    await world.put(*news(3))
    (alone,) = await world.lease(10)
    assert alone.alone
    assert (await world.store.lease(asking(10, holding=1))).items == ()
    assert (await world.store.lease(asking(10, holding=0))).items == ()
    assert len(await world.lease(10, worker="w-2")) == 3
    await world.finish(finished(alone))
    await world.put(new())
    assert len(await world.lease(10)) == 1


async def test_suspects_that_are_not_due_hold_up_nobody(world: World) -> None:
    item = await world.suspect(crashes=1)
    lost = await world.grab(item.id)
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    await world.finish(after_crash(lost, delay=10 * SECOND))
    made = news(2)
    await world.put(*made)
    leases = await world.store.lease(asking(10))
    assert ids(leases.items) == ids(made)
    assert not leases.suspects_due
    world.tick(10 * SECOND)
    assert (await world.store.lease(asking(10, holding=2))).suspects_due


async def test_suspects_of_paused_queues_hold_up_nobody(world: World) -> None:
    await world.suspect(queue="a")
    plain = new(queue="b")
    await world.put(plain)
    await world.store.configure("a", QueueChange(paused=True))
    wants = [Want("a", 5, TTL, 3), Want("b", 5, TTL, 3)]
    leases = await world.store.lease(asking(wants=wants, holding=1))
    assert ids(leases.items) == (plain.id,)
    assert not leases.suspects_due


async def test_suspects_of_other_queues_are_not_reported(world: World) -> None:
    await world.suspect(queue="a")
    leases = await world.store.lease(asking(5, queue="b", holding=1))
    assert (leases.items, leases.suspects_due) == ((), False)


async def test_suspects_are_reported_only_if_they_could_be_given(world: World) -> None:
    """Not those that are not due, and not for the sake of others that are held or wait elsewhere."""
    await world.suspect(queue="b")
    await world.put(*news(2, "a"))
    for _ in range(2):
        await world.finish(*(after_crash(item) for item in await world.lease(2, queue="a")))
    await world.lease_one(queue="a", worker="w-1")
    later = await world.lease_one(queue="a", worker="w-2")
    await world.finish(released(later, delay=10 * SECOND))
    leases = await world.store.lease(asking(5, queue="a", worker="w-3", holding=1))
    assert (leases.items, leases.suspects_due) == ((), False)
    world.tick(10 * SECOND)
    assert (await world.store.lease(asking(5, queue="a", worker="w-3", holding=1))).suspects_due


async def test_suspects_are_not_taken_by_a_want_of_nothing(world: World) -> None:
    await world.suspect(queue="a")
    plain = new(queue="b")
    await world.put(plain)
    wants = [Want("a", 0, TTL, 3), Want("b", 5, TTL, 3)]
    assert ids((await world.store.lease(asking(wants=wants))).items) == (plain.id,)


async def test_suspects_stay_alone_in_the_hands_of_the_reaper(world: World) -> None:
    """`decide` kills only after a lone crash, so the reaper must still see that the lost lease was a lone one."""
    await world.suspect()
    await world.lease_one()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 1)
    assert lost.alone


async def test_suspects_taken_over_no_longer_bind_the_lost_worker(world: World) -> None:
    """A worker that was slow, not dead, may go on with other work while the reaper judges the item it lost."""
    await world.suspect()
    await world.lease_one()
    world.tick(TTL + 1)
    assert len(await world.store.reclaim("reaper", [QUEUE], TTL, 1)) == 1
    await world.put(new())
    assert len(await world.lease(5)) == 1


async def test_suspects_lose_the_mark_with_the_lease(world: World) -> None:
    await world.suspect()
    alone = await world.lease_one()
    await world.finish(failed(alone))
    assert not (await world.item(alone.id)).alone


async def test_suspects_follow_the_settle_that_empties_the_hands(world: World) -> None:
    """`then` counts what is in hand after the settlements: with nothing left, the suspect is next."""
    suspect = await world.suspect()
    await world.put(new())
    (plain,) = await world.lease(1, holding=1)
    settled = await world.settle(released(plain), then=asking(10, holding=0))
    assert ids(next_leases(settled).items) == (suspect.id,)


async def test_suspects_do_not_follow_a_settle_that_leaves_something(world: World) -> None:
    await world.suspect()
    await world.put(*news(3))
    first, _second = await world.lease(2, holding=1)
    leases = next_leases(await world.settle(finished(first), then=asking(10, holding=1)))
    assert len(leases.items) == 1
    assert leases.suspects_due
    assert not leases.items[0].alone


async def test_suspects_repeated_by_nonce_are_the_same(world: World) -> None:
    await world.suspect()
    await world.put(new())
    request = asking(5)
    first = await world.store.lease(request)
    again = await world.store.lease(request)
    assert again.items == first.items
    assert again.items[0].alone


async def test_suspects_are_cleared_by_a_replay(world: World) -> None:
    """A replay forgives the crashes: the item is plain again."""
    item = await world.suspect()
    await world.replay_dead(item.id)
    plain = new()
    await world.put(plain)
    assert set(ids(await world.lease(10))) == {item.id, plain.id}
