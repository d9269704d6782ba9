"""Kinds: a lease names the kinds that it takes; the others stay ready, and all of them are one order."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from redrive.core.acts import Move, Replay
from redrive.core.item import NewItem, Priority, Terms
from redrive.core.meters import Rate
from redrive.core.select import And, Ids, Match
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import (
    PATIENCE,
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

LONG = 3_600 * SECOND
MANY = 12


async def crashed(world: World, item: NewItem, times: int = 2) -> None:
    for _ in range(times):
        leased = await world.grab(item.id)
        await world.finish(after_crash(leased))


async def still_waits(world: World, kinds: tuple[str, ...], step: int = 0, queue: str = QUEUE) -> asyncio.Future[None]:
    """A waiter that does not come back, though some time passes."""
    waiting = asyncio.ensure_future(world.store.wait((queue,), LONG, {queue: kinds}))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(5.0):
            while not (world.clock.sleepers or waiting.done()):
                await asyncio.wait({waiting}, timeout=0.001)
    world.tick(step)
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done(), "only other kinds are due, but wait came back"
    return waiting


async def test_kinds_are_kept_and_found(world: World) -> None:
    refund, plain = new(kind="refund ☃"), new()
    await world.put(refund, plain)
    assert [(await world.item(one.id)).kind for one in (refund, plain)] == ["refund ☃", ""]
    assert ids((await world.store.find(Match("kind", "=", "refund ☃"))).items) == (refund.id,)
    assert ids((await world.store.find(Match("kind", "glob", "ref*"))).items) == (refund.id,)
    assert ids((await world.store.find(Match("kind", "=", ""))).items) == (plain.id,)
    assert [item.kind for item in await world.lease(2)] == ["refund ☃", ""]


async def test_kinds_of_a_lease_leave_the_others_ready(world: World) -> None:
    refund, order, plain = new(kind="refund"), new(kind="order"), new()
    await world.put(refund, order, plain)
    assert await world.lease(5, kinds=("other",)) == ()
    assert await world.lease(5, kinds=()) == ()
    assert ids(await world.lease(5, kinds=("order", "order", "other"))) == (order.id,)
    assert ids(await world.lease(5, kinds=("", "other"))) == (plain.id,)
    count = await world.count()
    assert (count.ready, count.leased) == (1, 2)
    assert ids(await world.lease(5)) == (refund.id,)
    await world.sound()


async def test_kinds_of_a_lease_where_all_are_plain(world: World) -> None:
    await world.put(plain := new())
    assert await world.lease(5, kinds=("refund",)) == ()
    assert ids(await world.lease(5, kinds=("refund", ""))) == (plain.id,)


async def test_kinds_of_the_next_lease_of_settle(world: World) -> None:
    item = await world.held()
    await world.put(new(kind="order"), refund := new(kind="refund"))
    settled = await world.settle(finished(item), then=asking(5, kinds=("refund",)))
    assert ids(next_leases(settled).items) == (refund.id,)


async def test_kinds_are_one_order(world: World) -> None:
    """Whatever their names: what was due first is given first."""
    made = []
    for kind in ("c", "", "a", "b", "a", "", "c", "b"):
        made.append(new(kind=kind))
        await world.put(made[-1])
        world.tick(1)
    assert ids(await world.lease(3)) == ids(made[:3])
    assert ids(await world.lease(9)) == ids(made[3:])


async def test_kinds_are_one_order_however_few_are_read_of_each(world: World) -> None:
    """The first forty are of one kind: a store that reads a share of each must read on there."""
    first = [new(kind="a") for _ in range(40)]
    others = [new(kind=f"k{number % MANY:02}") for number in range(3 * MANY)]
    await world.put(*first)
    world.tick(1)
    await world.put(*others)
    world.tick(1)
    assert ids(await world.lease(50)) == ids([*first, *others])[:50]
    assert ids(await world.lease(50)) == ids([*first, *others])[50:]
    assert await world.lease(1) == ()


async def test_kinds_share_levels(world: World) -> None:
    """Priorities and retries are the queue's, not the kind's."""
    low, normal = new(kind="a", priority=Priority.LOW), new(kind="b")
    high = new(kind="c", priority=Priority.HIGH)
    await world.put(low, normal, high)
    given = await world.lease(3)
    assert ids(given) == (high.id, normal.id, low.id)
    await world.finish(*(failed(item) for item in given))
    world.tick(1)
    fresh = [new(kind="a"), new(kind="b")]
    await world.put(*fresh)
    assert ids(await world.lease(3, retries=1)) == (high.id, fresh[0].id, fresh[1].id)
    assert ids(await world.lease(3, retries=0)) == (normal.id, low.id)


async def test_kinds_stay_over_retry_replay_and_move(world: World) -> None:
    await world.put(made := new(kind="refund"))
    await world.finish(failed(await world.lease_one()))
    item = await world.lease_one(kinds=("refund",))
    await world.finish(dead(item))
    await world.store.amend(Ids((made.id,)), Move("other"), act())
    await world.store.amend(Ids((made.id,)), Replay(), act())
    assert await world.lease(1, queue="other", kinds=("",)) == ()
    again = await world.lease_one(queue="other", kinds=("refund",))
    assert (again.id, again.kind, again.queue) == (made.id, "refund", "other")
    await world.finish(released(again))
    await world.sound()


async def test_kinds_of_followups(world: World) -> None:
    item = await world.held()
    follow_up = new(kind="refund", release="1.4")
    await world.finish(finished(item, follow_ups=[follow_up]))
    given = await world.lease_one(kinds=("refund",))
    assert (given.id, given.kind, given.release) == (follow_up.id, "refund", "1.4")


async def test_kinds_of_suspects(world: World) -> None:
    """A suspect of a kind that the worker does not have is none of its business."""
    await world.put(made := new(kind="refund"))
    await crashed(world, made)
    await world.put(plain := new())
    leases = await world.store.lease(asking(1, holding=1, kinds=("",)))
    assert (ids(leases.items), leases.suspects_due) == ((plain.id,), False)
    assert not (await world.store.lease(asking(1, kinds=("order",)))).items
    assert (await world.store.lease(asking(1, holding=1, kinds=("refund",)))).suspects_due
    alone = await world.lease_one(kinds=("refund",), worker="w-2")
    assert (alone.id, alone.alone) == (made.id, True)


async def test_kinds_within_limits(world: World) -> None:
    """Of a limited queue, and under a limit key: what is of another kind takes no room."""
    await world.set(QueueChange(max_running=2, max_per_key=1, rate=Rate(100, SECOND)))
    keyed = [new(kind=kind, terms=Terms(limit_key="k")) for kind in ("a", "a", "b")]
    await world.put(*keyed, other := new(kind="b"))
    assert ids(await world.lease(5, kinds=("b",))) == (keyed[2].id, other.id)
    assert await world.lease(5, kinds=("a",)) == ()
    await world.sound()


async def test_kinds_behind_an_order_key(world: World) -> None:
    """The order of a key goes over kinds: a head that no worker has keeps the others back."""
    head, follower = [new(kind=kind, terms=Terms(order_key="k")) for kind in ("a", "b")]
    await world.put(head, follower)
    assert await world.lease(5, kinds=("b",)) == ()
    await world.finish(finished(await world.lease_one(kinds=("a",))))
    assert ids(await world.lease(5, kinds=("b",))) == (follower.id,)
    await world.sound()


async def test_kinds_repeat_a_request(world: World) -> None:
    await world.put(refund := new(kind="refund", release="2"), new())
    first = await world.lease(1, nonce="n", kinds=("refund",))
    assert await world.lease(1, nonce="n", kinds=("refund",)) == first
    assert ids(first) == (refund.id,)


async def test_kinds_are_reclaimed(world: World) -> None:
    await world.put(new(kind="refund", release="2"))
    await world.lease_one()
    world.tick(TTL + 1)
    (lost,) = await world.store.reclaim("w-2", [QUEUE], TTL, 5)
    assert (lost.kind, lost.release) == ("refund", "2")


async def test_kinds_that_are_due_are_told(world: World) -> None:
    await world.put(new(kind="b"), new(kind="a"), new(kind="late", delay=SECOND), new())
    await world.put(new(kind="held", terms=Terms(order_key="k")), new(kind="follows", terms=Terms(order_key="k")))
    assert await world.store.kinds(QUEUE) == ("", "a", "b", "held")
    assert await world.store.kinds("unknown") == ()
    world.tick(SECOND)
    assert await world.store.kinds(QUEUE) == ("", "a", "b", "held", "late")
    await world.lease(1, kinds=("a",))
    assert "a" not in await world.store.kinds(QUEUE)


async def test_kinds_of_a_wait(world: World) -> None:
    """A worker must not spin because items of kinds that it does not have are due."""
    await world.put(new(kind="order"), *news(3))
    waiting = await still_waits(world, ("refund",), SECOND)
    await world.put(new(kind="refund"))
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_kinds_of_a_wait_that_are_due(world: World) -> None:
    await world.put(new(kind="order"), new(kind="refund", delay=SECOND))
    waiting = await still_waits(world, ("refund", "other"))
    await world.drive(waiting, SECOND // 4)
    async with asyncio.timeout(PATIENCE):
        await world.store.wait((QUEUE,), LONG, {QUEUE: ("refund",), "elsewhere": ()})
        await world.store.wait((QUEUE,), LONG, {"elsewhere": ("a",)})


async def test_kinds_count_as_one_queue(world: World) -> None:
    await world.put(*(new(kind=f"k{number}") for number in range(5)), new())
    count = await world.count()
    assert (count.ready, count.oldest_due) == (6, world.clock.now())
    await world.set(QueueChange(capacity=6))
    page = await world.store.find(And((Match("queue", "=", QUEUE), Match("state", "=", "ready"))))
    assert len(page.items) == 6
    await world.sound()


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_kinds_drain_each_once(world: World, limit: int) -> None:
    made = [new(kind=f"k{number % 9}" if number % 3 else "", delay=number % 5) for number in range(60)]
    await world.put(*made)
    world.tick(10)
    given: list[str] = []
    while items := await world.lease(limit, turn=len(given)):
        given.extend(ids(items))
    expected = sorted(range(60), key=lambda number: (number % 5, number))
    assert given == [made[number].id for number in expected]
