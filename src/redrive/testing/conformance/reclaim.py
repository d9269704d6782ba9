"""`reclaim`: expired leases change hands once, under a new delivery number, and nothing else does."""

from __future__ import annotations

from redrive.core.states import State
from redrive.core.verbs import Verdict, WorkerFacts
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    after_crash,
    asking,
    failed,
    finished,
    held,
    ids,
    new,
    news,
    verdicts,
)


async def test_reclaim_takes_over_under_a_new_delivery(world: World) -> None:
    item = await world.held(worker="lost one")
    world.tick(TTL + 1)
    (taken,) = await world.store.reclaim("reaper", [QUEUE], 2 * TTL, 10)
    assert (taken.id, taken.state, taken.deliveries) == (item.id, State.LEASED, 2)
    assert taken.lease_until == world.clock.now() + 2 * TTL
    assert (taken.worker, taken.leased_at, taken.attempt) == ("lost one", item.leased_at, 1)
    assert (taken.errors, taken.crashes, taken.payload) == (0, 0, item.payload)
    assert await world.item(item.id) == taken


async def test_reclaim_hands_over_the_right_to_settle(world: World) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    (taken,) = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert verdicts(await world.settle(finished(item))) == (Verdict.REFUSED,)
    assert verdicts(await world.settle(after_crash(taken))) == (Verdict.APPLIED,)
    after = await world.item(item.id)
    assert (after.state, after.crashes, after.attempt, after.errors) == (State.READY, 1, 1, 0)


async def test_reclaim_leaves_leases_that_have_not_expired(world: World) -> None:
    item = await world.held()
    world.tick(TTL - 1)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10) == ()
    assert await world.item(item.id) == item


async def test_reclaim_by_force_takes_running_leases(world: World) -> None:
    item = await world.held()
    (taken,) = await world.store.reclaim("operator", [QUEUE], TTL, 10, [item.id], force=True)
    assert (taken.id, taken.deliveries) == (item.id, 2)
    assert (await world.store.extend([held(item)], TTL)).lost == (item.id,)


async def test_reclaim_with_ids_takes_only_those(world: World) -> None:
    await world.put(*news(3))
    items = await world.lease(3)
    world.tick(TTL + 1)
    taken = await world.store.reclaim("reaper", [QUEUE], TTL, 10, [items[1].id, "nobody"])
    assert ids(taken) == (items[1].id,)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10, []) == ()


async def test_reclaim_with_ids_keeps_to_the_limit(world: World) -> None:
    """Of those that are named, too, the longest expired come first."""
    await world.put(*news(3))
    slow = await world.lease_one(ttl=3 * SECOND)
    quick = await world.lease_one(ttl=SECOND)
    middle = await world.lease_one(ttl=2 * SECOND)
    world.tick(10 * SECOND)
    named = ids((slow, middle, quick))
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 2, named)) == (quick.id, middle.id)
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 0, named) == ()


async def test_reclaim_with_ids_does_not_force(world: World) -> None:
    item = await world.held()
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10, [item.id]) == ()


async def test_reclaim_leaves_what_nobody_holds(world: World) -> None:
    ready, done, letter = new(), await world.done(), await world.letter()
    await world.put(ready)
    before = [await world.store.get(item_id) for item_id in (ready.id, done.id, letter.id)]
    world.tick(100 * TTL)
    wanted = [ready.id, done.id, letter.id]
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10, wanted, force=True) == ()
    assert [await world.store.get(item_id) for item_id in wanted] == before


async def test_reclaim_leaves_queues_whose_policy_the_caller_lacks(world: World) -> None:
    """A reaper that does not know a queue must not judge its items, by force or not."""
    item = await world.held(queue=QUEUE)
    await world.put(new(queue="known"))
    known = await world.lease_one(queue="known")
    world.tick(TTL + 1)
    assert ids(await world.store.reclaim("reaper", ["known", "never heard of"], TTL, 10)) == (known.id,)
    assert await world.store.reclaim("reaper", ["known"], TTL, 10, [item.id], force=True) == ()
    assert await world.store.reclaim("reaper", [], TTL, 10) == ()
    assert await world.item(item.id) == item


async def test_reclaim_takes_the_longest_expired_first(world: World) -> None:
    await world.put(*news(3))
    (slow,) = await world.lease(1, ttl=3 * SECOND)
    (quick,) = await world.lease(1, ttl=SECOND)
    (middle,) = await world.lease(1, ttl=2 * SECOND)
    world.tick(10 * SECOND)
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 2)) == (quick.id, middle.id)
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 2)) == (slow.id,)


async def test_reclaim_takes_the_longest_expired_first_of_all_queues(world: World) -> None:
    await world.put(new(queue="a"), new(queue="b"), new(queue="a"), new(queue="b"))
    slow = await world.lease_one(queue="a", ttl=4 * SECOND)
    middle = await world.lease_one(queue="b", ttl=3 * SECOND)
    quick = await world.lease_one(queue="a", ttl=SECOND)
    second = await world.lease_one(queue="b", ttl=2 * SECOND)
    world.tick(10 * SECOND)
    assert ids(await world.store.reclaim("reaper", ["a", "b"], TTL, 3)) == ids((quick, second, middle))
    assert ids(await world.store.reclaim("reaper", ["a", "b"], TTL, 3)) == (slow.id,)


async def test_reclaim_past_a_full_batch_of_others(world: World) -> None:
    """Many expired leases of a queue the reaper may not touch come first; its own are found all the same."""
    await world.put(*news(30, "foreign"))
    assert len(await world.lease(30, queue="foreign", ttl=SECOND)) == 30
    await world.put(*news(2, "mine"))
    mine = await world.lease(2, queue="mine", ttl=2 * SECOND)
    world.tick(10 * SECOND)
    assert ids(await world.store.reclaim("reaper", ["mine"], TTL, 2)) == ids(mine)


async def test_reclaim_past_a_full_batch_of_prolonged_ones(world: World) -> None:
    """Leases that were prolonged meanwhile do not stand before those that have expired."""
    await world.put(*news(4))
    prolonged = await world.lease(3, ttl=SECOND)
    lost = await world.lease_one(ttl=2 * SECOND, worker="w-2")
    assert (await world.store.extend([held(item) for item in prolonged], TTL)).lost == ()
    world.tick(3 * SECOND)
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 2)) == (lost.id,)


async def test_reclaim_does_not_take_the_same_twice(world: World) -> None:
    await world.held()
    world.tick(TTL + 1)
    assert len(await world.store.reclaim("reaper", [QUEUE], TTL, 10)) == 1
    assert await world.store.reclaim("reaper-2", [QUEUE], TTL, 10) == ()


async def test_reclaim_again_when_the_reaper_died_too(world: World) -> None:
    """A reaper killed in the middle of its batch leaves leases that lapse like any other."""
    item = await world.held(worker="lost one")
    world.tick(TTL + 1)
    (first,) = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    world.tick(TTL + 1)
    (second,) = await world.store.reclaim("reaper-2", [QUEUE], TTL, 10)
    assert (second.id, second.deliveries, second.attempt) == (item.id, 3, 1)
    assert verdicts(await world.settle(after_crash(first))) == (Verdict.REFUSED,)
    assert verdicts(await world.settle(after_crash(second))) == (Verdict.APPLIED,)
    assert (await world.item(item.id)).crashes == 1


async def test_reclaim_leaves_what_completed_after_the_look(world: World) -> None:
    """The reaper scanned, the worker settled late but in time: done stays done."""
    item = await world.held()
    world.tick(TTL + 1)
    await world.finish(finished(item))
    assert await world.store.reclaim("reaper", [QUEUE], TTL, 10, [item.id]) == ()
    after = await world.item(item.id)
    assert (after.state, after.deliveries) == (State.DONE, 1)


async def test_reclaim_does_not_need_the_worker_s_row(world: World) -> None:
    """Leases lapse by themselves: beats prolong nothing, and a worker nobody heard of loses its leases just so."""
    known = await world.held(worker="known")
    unknown = await world.held(worker="unknown")
    world.tick(TTL + 1)
    await world.store.beat("known", WorkerFacts((QUEUE,)), 100 * TTL)
    taken = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert set(ids(taken)) == {known.id, unknown.id}


async def test_reclaim_after_a_restart_under_the_same_name(world: World) -> None:
    """A pod that comes back under its old name neither keeps nor inherits the leases of its former life."""
    item = await world.held(worker="pod-0")
    await world.store.beat("pod-0", WorkerFacts((QUEUE,)), 100 * TTL)
    await world.put(new())
    second = await world.lease_one(worker="pod-0")
    world.tick(TTL - 1)
    assert (await world.store.extend([held(second)], TTL)).lost == ()
    world.tick(2)
    assert ids(await world.store.reclaim("reaper", [QUEUE], TTL, 10)) == (item.id,)


async def test_reclaim_keeps_the_counts_of_the_queue(world: World) -> None:
    await world.held()
    world.tick(TTL + 1)
    await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    count = await world.count()
    assert (count.ready, count.leased) == (0, 1)


async def test_reclaim_is_not_a_lease_for_others(world: World) -> None:
    await world.held()
    world.tick(TTL + 1)
    await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert await world.lease(10, worker="w-2") == ()


async def test_reclaim_of_a_retry_names_the_lost_delivery(world: World) -> None:
    item = await world.held(worker="first")
    await world.finish(failed(item))
    world.tick(SECOND)
    again = (await world.store.lease(asking(1, worker="second"))).items[0]
    world.tick(TTL + 1)
    (taken,) = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert (taken.worker, taken.leased_at, taken.attempt) == ("second", again.leased_at, 2)
    assert (taken.deliveries, taken.errors) == (3, 1)
