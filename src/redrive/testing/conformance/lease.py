"""`lease`: due, unpaused, earliest first, exclusive; counted before it is given; once per nonce."""

from __future__ import annotations

from redrive.core.states import State
from redrive.core.verbs import Leases, QueueChange, Want
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    WORKER,
    World,
    after_crash,
    asking,
    dead,
    failed,
    finished,
    held,
    ids,
    new,
    news,
    released,
)


async def test_lease_gives_the_item_with_the_facts_of_the_lease(world: World) -> None:
    made = new(b"payload")
    await world.put(made)
    world.tick(SECOND)
    before = await world.item(made.id)
    leases = await world.store.lease(asking(5, ttl=TTL))
    (item,) = leases.items
    now = world.clock.now()
    assert (item.state, item.worker, item.leased_at, item.lease_until) == (State.LEASED, WORKER, now, now + TTL)
    assert (item.id, item.payload, item.seq, item.enqueued_at) == (made.id, b"payload", before.seq, before.enqueued_at)
    assert (item.renewed_at, item.due_at) == (before.renewed_at, before.due_at)
    assert not item.alone
    assert not leases.suspects_due
    assert await world.item(made.id) == item


async def test_lease_counts_before_it_gives(world: World) -> None:
    """The counters are in the store when the lease is given, so a worker that dies at once has been counted."""
    given = await world.held()
    assert (given.deliveries, given.attempt, given.errors, given.crashes) == (1, 1, 0, 0)
    stored = await (await world.another()).get(given.id)
    assert (stored.item.deliveries, stored.item.attempt, stored.item.state) == (1, 1, State.LEASED)


async def test_lease_from_nothing_gives_nothing(world: World) -> None:
    assert await world.store.lease(asking(5)) == Leases()
    assert await world.store.lease(asking(5, queue="never heard of")) == Leases()


async def test_lease_does_not_declare_a_queue(world: World) -> None:
    await world.lease(5, queue="typo")
    assert (await world.store.tally()).queues == ()


async def test_lease_keeps_to_the_limit(world: World) -> None:
    made = news(5)
    await world.put(*made)
    assert ids(await world.lease(2)) == ids(made[:2])
    assert ids(await world.lease(2)) == ids(made[2:4])
    assert ids(await world.lease(2)) == ids(made[4:])
    assert await world.lease(2) == ()


async def test_lease_of_nothing_takes_nothing(world: World) -> None:
    await world.put(new())
    assert await world.lease(0) == ()
    assert (await world.store.lease(asking(wants=[Want("other", 1, TTL, 3)]))).items == ()
    assert (await world.count()).leased == 0


async def test_lease_gives_the_earliest_due_first(world: World) -> None:
    late, early, middle = new(delay=3 * SECOND), new(delay=SECOND), new(delay=2 * SECOND)
    await world.put(late, early, middle)
    world.tick(5 * SECOND)
    fresh_one = new()
    await world.put(fresh_one)
    assert ids(await world.lease(10)) == ids((early, middle, late, fresh_one))


async def test_lease_gives_the_earliest_due_first_however_often_it_crashed(world: World) -> None:
    """A crash costs an item its place in the line no more than an error does, as long as it may run in company."""
    await world.put(*news(4))
    one, two, three, four = await world.lease(4)
    await world.finish(
        after_crash(one, 3 * SECOND), released(two, 2 * SECOND), after_crash(three, SECOND), released(four, 3 * SECOND)
    )
    world.tick(5 * SECOND)
    given = [ids(await world.lease(1)) for _ in range(4)]
    assert given == [(item.id,) for item in (three, two, one, four)]


async def test_lease_gives_equally_due_in_the_order_of_put(world: World) -> None:
    made = news(6)
    await world.put(*made[:3])
    await world.put(*made[3:])
    assert ids(await world.lease(10)) == ids(made)


async def test_lease_gives_a_retry_when_it_is_due_and_not_before(world: World) -> None:
    """P7: the delay counts from the settle by the store's clock, to the millisecond."""
    item = await world.held()
    world.tick(7)
    await world.finish(failed(item, delay=10 * SECOND))
    world.tick(10 * SECOND - 1)
    assert await world.lease(10) == ()
    world.tick(1)
    assert ids(await world.lease(10)) == (item.id,)


async def test_lease_serves_the_wants_in_their_order(world: World) -> None:
    mails, calls = news(3, "mails"), news(3, "calls")
    await world.put(*mails, *calls)
    request = asking(wants=[Want("calls", 2, TTL, 3), Want("mails", 1, 2 * TTL, 3)])
    items = (await world.store.lease(request)).items
    assert ids(items) == ids((*calls[:2], mails[0]))
    now = world.clock.now()
    assert [item.lease_until for item in items] == [now + TTL, now + TTL, now + 2 * TTL]


async def test_lease_for_two_wants_of_one_queue_gives_each_once(world: World) -> None:
    made = news(4)
    await world.put(*made)
    request = asking(wants=[Want(QUEUE, 1, TTL, 3), Want(QUEUE, 2, 2 * TTL, 3)])
    first = await world.store.lease(request)
    assert ids(first.items) == ids(made[:3])
    now = world.clock.now()
    assert [item.lease_until for item in first.items] == [now + TTL, now + 2 * TTL, now + 2 * TTL]
    assert await world.store.lease(request) == first
    assert (await world.count()).leased == 3


async def test_lease_of_one_queue_leaves_the_others(world: World) -> None:
    await world.put(new(queue="mails"), new(queue="calls"))
    (item,) = await world.lease(10, queue="calls")
    assert item.queue == "calls"
    assert (await world.count("mails")).ready == 1


async def test_lease_is_exclusive(world: World) -> None:
    """A held item is given to nobody else: not to another worker, not through another handle, not when it expired."""
    item = await world.held()
    other = await world.another()
    assert (await other.lease(asking(10, worker="w-2"))).items == ()
    assert await world.lease(10) == ()
    world.tick(TTL + 1)
    assert (await other.lease(asking(10, worker="w-2"))).items == ()
    assert (await world.item(item.id)).deliveries == 1


async def test_lease_leaves_the_ended_alone(world: World) -> None:
    done, letter = await world.done(), await world.letter()
    world.tick(1_000 * TTL)
    assert await world.lease(10) == ()
    assert (await world.item(done.id), await world.item(letter.id)) == (done, letter)


async def test_lease_again_counts_again(world: World) -> None:
    """`deliveries` only ever grows; `attempt` grows with each lease that is charged."""
    item = await world.held()
    for turn in (2, 3, 4):
        await world.finish(failed(item))
        item = await world.lease_one()
        assert (item.deliveries, item.attempt, item.errors) == (turn, turn, turn - 1)
    await world.finish(dead(item))
    assert (await world.item(item.id)).deliveries == 4


async def test_lease_passes_over_paused_queues(world: World) -> None:
    await world.put(new(queue="mails"), new(queue="calls"))
    await world.store.configure("mails", QueueChange(paused=True))
    both = [Want("mails", 5, TTL, 3), Want("calls", 5, TTL, 3)]
    (item,) = (await world.store.lease(asking(wants=both))).items
    assert item.queue == "calls"
    assert await world.lease(5, queue="mails") == ()
    await world.store.configure("mails", QueueChange(paused=False))
    assert len(await world.lease(5, queue="mails")) == 1


async def test_lease_with_the_same_nonce_gives_the_same_leases(world: World) -> None:
    """The reply was lost: the worker asks again and gets what it already holds, counted once."""
    await world.put(*news(5))
    request = asking(2)
    first = await world.store.lease(request)
    assert len(first.items) == 2
    assert await world.store.lease(request) == first
    assert (await (await world.another()).lease(request)).items == first.items
    assert [item.deliveries for item in first.items] == [1, 1]
    assert (await world.count()).leased == 2
    assert len(await world.lease(5)) == 3


async def test_lease_with_the_same_nonce_leaves_out_what_is_no_longer_held(world: World) -> None:
    await world.put(*news(4))
    request = asking(4)
    done, retried, taken, kept = (await world.store.lease(request)).items
    await world.finish(finished(done), failed(retried))
    await world.store.reclaim("reaper", [QUEUE], TTL, 1, [taken.id], force=True)
    assert ids((await world.store.lease(request)).items) == (kept.id,)
    assert (await world.item(retried.id)).state is State.READY


async def test_lease_with_the_same_nonce_leases_nothing_new(world: World) -> None:
    request = asking(3)
    assert (await world.store.lease(request)).items == ()
    await world.put(*news(3))
    assert (await world.store.lease(request)).items == ()
    assert len(await world.lease(3)) == 3


async def test_lease_does_not_give_a_regained_item_under_the_old_nonce(world: World) -> None:
    """Released and leased again by the same worker is another delivery: an old nonce no longer names it."""
    item = await world.held(nonce="one")
    await world.finish(released(item))
    again = await world.lease_one(nonce="two")
    assert again.deliveries == 2
    repeated = await world.store.lease(asking(1, nonce="two"))
    assert ids(repeated.items) == (again.id,)


async def test_lease_nonces_are_each_worker_s_own(world: World) -> None:
    await world.put(*news(2))
    one = await world.lease_one(worker="w-1", nonce="same")
    two = await world.lease_one(worker="w-2", nonce="same")
    assert one.id != two.id
    assert ids(await world.lease(1, worker="w-1", nonce="same")) == (one.id,)
    assert ids(await world.lease(1, worker="w-2", nonce="same")) == (two.id,)


async def test_lease_nonces_are_each_lane_s_own(world: World) -> None:
    """Two requests of a worker are under way: the first answer is lost, the second one was applied meanwhile."""
    await world.put(*news(3))
    first = (await world.store.lease(asking(1, nonce="one", lane=1))).items
    second = (await world.store.lease(asking(1, nonce="two", lane=2))).items
    assert len({*ids(first), *ids(second)}) == 2
    again = await world.store.lease(asking(1, nonce="one", lane=1))
    assert again.items == first
    settled = await world.store.settle([finished(second[0])], asking(1, nonce="two", lane=2))
    assert settled.leases is not None
    assert settled.leases.items == ()
    assert (await world.store.lease(asking(1, nonce="one", lane=1))).items == first
    (third,) = (await world.store.lease(asking(1, nonce="one", lane=2))).items
    assert third.id not in {*ids(first), *ids(second)}
    assert (await world.store.lease(asking(1, nonce="three", lane=3))).items == ()
    await world.put(new())
    assert (await world.store.lease(asking(1, nonce="three", lane=3))).items == ()


async def test_lease_with_a_new_nonce_gives_more(world: World) -> None:
    await world.put(*news(2))
    first, second = await world.lease_one(), await world.lease_one()
    assert first.id != second.id
    assert (await world.store.extend([held(first), held(second)], TTL)).lost == ()


async def test_lease_remembers_its_nonce_after_reopening(world: World) -> None:
    """A worker outlives its connection; the store must not forget what it gave."""
    world.needs("durable")
    await world.put(*news(3))
    request = asking(2)
    first = await world.store.lease(request)
    await world.store.close()
    assert await (await world.another()).lease(request) == first


async def test_lease_does_not_move_what_it_does_not_give(world: World) -> None:
    made = news(3)
    await world.put(*made)
    before = [await world.item(item.id) for item in made[1:]]
    await world.lease(1)
    assert [await world.item(item.id) for item in made[1:]] == before
