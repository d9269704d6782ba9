"""`lease` of one item by its id: that one and no other, due or not and beyond limits, but never past its hold."""

from __future__ import annotations

import asyncio

import pytest

from redrive.core.acts import Cancel
from redrive.core.item import Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import (
    GateWrite,
    Leases,
    QueueChange,
    Want,
)
from redrive.errors import ConfigError
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    WORKER,
    World,
    act,
    asking,
    dead,
    failed,
    finished,
    ids,
    new,
    news,
    next_leases,
    refusal,
)


async def test_lease_item_gives_that_one_and_nothing_else(world: World) -> None:
    made = news(4)
    await world.put(*made)
    leases = await world.store.lease(asking(4, item=made[2].id))
    (item,) = leases.items
    now = world.clock.now()
    assert (item.id, item.state, item.worker, item.lease_until) == (made[2].id, State.LEASED, WORKER, now + TTL)
    assert (item.deliveries, item.attempt, item.alone, leases.suspects_due) == (1, 1, False, False)
    assert await world.item(item.id) == item
    count = await world.count()
    assert (count.ready, count.leased) == (3, 1)
    await world.sound()


async def test_lease_item_leaves_the_others_in_their_order(world: World) -> None:
    made = news(4)
    await world.put(*made)
    world.tick(SECOND)
    assert ids(await world.lease(1, item=made[1].id)) == (made[1].id,)
    assert ids(await world.lease(2)) == ids((made[0], made[2]))


async def test_lease_item_gives_one_that_is_not_due(world: World) -> None:
    made = new(delay=60 * SECOND)
    await world.put(made)
    assert await world.lease(1) == ()
    (item,) = await world.lease(1, item=made.id)
    assert item.due_at == world.clock.now() + 60 * SECOND
    await world.finish(failed(item, delay=60 * SECOND))
    (again,) = await world.lease(1, item=made.id)
    assert (again.deliveries, again.errors) == (2, 1)


async def test_lease_item_of_a_paused_queue(world: World) -> None:
    made = news(2)
    await world.put(*made)
    await world.set(QueueChange(paused=True))
    assert await world.lease(1) == ()
    assert ids(await world.lease(1, item=made[1].id)) == (made[1].id,)


async def test_lease_item_counts_under_limits_that_do_not_hold_it(world: World) -> None:
    made = news(8)
    await world.put(*made)
    await world.set(QueueChange(max_running=2, rate=Rate(1, SECOND, 3)))
    assert len(await world.lease(1)) == 1
    assert ids(await world.lease(1, item=made[7].id)) == (made[7].id,)
    # Two run, and two of three are spent.
    assert await world.lease(5) == ()
    assert ids(await world.lease(1, item=made[6].id)) == (made[6].id,)
    await world.set(QueueChange(max_running=None))
    assert await world.lease(5) == ()
    assert ids(await world.lease(1, item=made[5].id)) == (made[5].id,)
    # It was given beyond the rate, and the next comes so much later.
    world.tick(SECOND)
    assert await world.lease(5) == ()
    world.tick(SECOND)
    assert len(await world.lease(5)) == 1


async def test_lease_item_behind_a_breaker_is_a_probe(world: World) -> None:
    made = news(3)
    await world.put(*made)
    await world.set(QueueChange(gate="smtp"))
    gate = await world.store.set_gate(GateWrite("smtp", 0, SECOND * 1_000, shut=True))
    assert await world.lease(1) == ()
    assert ids(await world.lease(1, item=made[0].id)) == (made[0].id,)
    spent = await world.store.gate("smtp")
    assert spent is not None
    assert spent.next_at == gate.next_at + SECOND * 1_000


async def test_lease_item_pays_as_what_it_is(world: World) -> None:
    """First attempts fill the credit of a breaker, retries draw on it."""
    made = news(3)
    await world.put(*made)
    item = await world.lease_one()
    await world.finish(failed(item))
    await world.set(QueueChange(gate="smtp"))
    await world.store.set_gate(GateWrite("smtp", 0, share=500, cap=5_000))
    for one, credit in ((made[1], 500), (made[2], 1_000), (made[0], 0)):
        assert ids(await world.lease(1, item=one.id)) == (one.id,)
        gate = await world.store.gate("smtp")
        assert gate is not None
        assert (gate.credit, gate.floor_at) == (credit, 0)


# --- what is not given ---


async def held_by_order(world: World) -> str:
    first, second = (new(terms=Terms(order_key="k")) for _ in range(2))
    await world.put(first, second)
    return second.id


async def held_by_after(world: World) -> str:
    first = new()
    second = new(terms=Terms(after=(first.id,)))
    await world.put(first, second)
    return second.id


async def held_by_limit(world: World) -> str:
    await world.set(QueueChange(max_per_key=1))
    first, second = (new(terms=Terms(limit_key="k")) for _ in range(2))
    await world.put(first, second)
    assert ids(await world.lease(2, worker="other")) == (first.id,)
    return second.id


async def parked(world: World) -> str:
    await world.set(QueueChange(order="park"))
    second = await held_by_order(world)
    await world.finish(dead(await world.lease_one(worker="other")))
    return second


HELD = {"order": held_by_order, "after": held_by_after, "limit": held_by_limit, "parked:order": parked}


@pytest.mark.parametrize("hold", HELD)
async def test_lease_item_never_passes_a_hold(world: World, hold: str) -> None:
    item_id = await HELD[hold](world)
    before = await world.item(item_id)
    assert before.hold == hold
    assert await world.store.lease(asking(1, item=item_id)) == Leases()
    assert await world.item(item_id) == before


async def test_lease_item_whose_limit_key_is_full_is_set_aside(world: World) -> None:
    await world.set(QueueChange(max_per_key=1))
    first, second = (new(terms=Terms(limit_key="k")) for _ in range(2))
    await world.put(first, second)
    (running,) = await world.lease(1, item=first.id)
    assert await world.store.lease(asking(1, item=second.id)) == Leases()
    assert await world.holds(second) == ["limit"]
    await world.finish(finished(running))
    assert ids(await world.lease(1, item=second.id)) == (second.id,)
    await world.sound()


async def test_lease_item_gives_only_what_waits(world: World) -> None:
    running, over, letter, gone = news(4)
    await world.put(running, over, letter, gone)
    _, done, died = await world.lease(3, worker="other")
    await world.finish(finished(done), dead(died))
    await world.store.amend(Ids((gone.id,)), Cancel(), act())
    for item_id in (running.id, over.id, letter.id, gone.id, "no such item"):
        before = await world.history(item_id)
        assert await world.store.lease(asking(1, item=item_id)) == Leases()
        assert await world.history(item_id) == before


async def test_lease_item_is_looked_for_in_the_queue_of_the_want(world: World) -> None:
    made = new(queue="other")
    await world.put(made, new())
    assert await world.store.lease(asking(1, item=made.id)) == Leases()
    assert await world.store.lease(asking(1, item=made.id, queue="never heard of")) == Leases()
    assert ids(await world.lease(1, item=made.id, queue="other")) == (made.id,)


# --- suspects, nonces, races ---


async def test_lease_item_that_is_a_suspect_is_given_alone(world: World) -> None:
    suspect = await world.suspect(crashes=2)
    await world.put(new())
    leases = await world.store.lease(asking(1, item=suspect.id, holding=1))
    assert leases == Leases(suspects_due=True)
    assert (await world.item(suspect.id)).state is State.READY
    (item,) = await world.lease(1, item=suspect.id)
    assert item.alone
    assert await world.lease(5) == ()
    await world.finish(finished(item))
    assert len(await world.lease(5)) == 1


async def test_lease_item_is_not_given_beside_a_suspect(world: World) -> None:
    await world.suspect(crashes=2)
    made = new()
    await world.put(made)
    alone = await world.lease_one()
    assert alone.alone
    assert await world.store.lease(asking(1, item=made.id)) == Leases()
    assert ids(await world.lease(1, item=made.id, worker="other")) == (made.id,)


async def test_lease_item_with_the_same_nonce_gives_the_same(world: World) -> None:
    made = news(3)
    await world.put(*made)
    request = asking(1, item=made[1].id, nonce="one")
    first = await world.store.lease(request)
    assert ids(first.items) == (made[1].id,)
    assert await world.store.lease(request) == first
    assert await (await world.another()).lease(request) == first
    assert (await world.item(made[1].id)).deliveries == 1
    await world.finish(finished(first.items[0]))
    assert await world.store.lease(request) == Leases()


async def test_lease_item_with_the_same_nonce_gives_the_same_suspect(world: World) -> None:
    suspect = await world.suspect(crashes=2)
    request = asking(1, item=suspect.id)
    first = await world.store.lease(request)
    assert ids(first.items) == (suspect.id,)
    assert await world.store.lease(request) == first


async def test_lease_item_goes_with_a_settle(world: World) -> None:
    made = news(3)
    await world.put(*made)
    item = await world.lease_one()
    settled = await world.settle(finished(item), then=asking(1, item=made[2].id))
    assert ids(next_leases(settled).items) == (made[2].id,)


async def test_race_of_leases_of_one_item_has_one_winner(world: World) -> None:
    made = new()
    await world.put(made)
    handles = [world.store, await world.another()]
    requests = [asking(1, item=made.id, worker=f"w-{number}") for number in range(8)]
    answers = await asyncio.gather(*(handles[n % 2].lease(request) for n, request in enumerate(requests)))
    given = [item for answer in answers for item in answer.items]
    assert ids(given) == (made.id,)
    assert await world.item(made.id) == given[0]


async def test_lease_item_needs_one_want(world: World) -> None:
    made = new()
    await world.put(made)
    wants = (Want(QUEUE, 1, TTL, 3), Want("other", 1, TTL, 3))
    for request in (asking(item=made.id, wants=wants), asking(1, item="a\0b")):
        error = await refusal(world.store.lease(request), request)
        assert error.field in {"item", ""}
        with pytest.raises(ConfigError):
            await world.settle(then=request)
    assert (await world.item(made.id)).state is State.READY
