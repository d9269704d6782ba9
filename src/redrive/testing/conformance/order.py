"""Order keys: one line per queue and key, its head alone can run, and a dead head blocks, parks or is passed by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.core.acts import Discard, Replay
from redrive.core.item import NewItem, Priority, Terms
from redrive.core.select import Ids, Match
from redrive.core.states import State
from redrive.core.verbs import QueueChange, Settlement
from redrive.testing.conformance.kit import (
    DURABLE,
    PARKED,
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
    next_leases,
    released,
)

A, B = Terms(order_key="a"), Terms(order_key="b")
BLOCK, PARK, SKIP = QueueChange(order="block"), QueueChange(order="park"), QueueChange(order="skip")


async def line(world: World, count: int = 3, terms: Terms = A) -> tuple[NewItem, ...]:
    """So many items of one key, put together."""
    made = tuple(new(terms=terms) for _ in range(count))
    await world.put(*made)
    return made


async def broken_line(world: World, change: QueueChange, count: int = 3) -> tuple[NewItem, ...]:
    """A line whose head died in a queue that is configured so."""
    await world.set(change)
    made = await line(world, count)
    await world.end(made[0], dead)
    return made


async def test_order_only_the_head_of_a_key_is_leased(world: World) -> None:
    one, two, three = await line(world)
    assert await world.holds(one, two, three) == ["", "order", "order"]
    assert ids(await world.lease(10)) == (one.id,)
    assert await world.lease(10) == ()
    count = await world.count()
    assert (count.ready, count.leased, count.held, count.parked) == (0, 1, 2, 0)
    await world.sound()


async def test_order_is_that_of_the_puts(world: World) -> None:
    first = await line(world, 3)
    second = await line(world, 2)
    assert await world.drain() == ids((*first, *second))
    await world.sound()


async def test_order_keys_do_not_wait_for_each_other(world: World) -> None:
    made = [new(terms=terms) for terms in (A, A, B, B, None)]
    await world.put(*made)
    assert set(ids(await world.lease(10))) == {made[0].id, made[2].id, made[4].id}


async def test_order_key_belongs_to_its_queue(world: World) -> None:
    one, two = new(terms=A), new(queue="other", terms=A)
    await world.put(one, two)
    assert await world.holds(one, two) == ["", ""]


async def test_order_takes_any_text_as_key(world: World) -> None:
    for key in ("a b", "☃/…", "{tag}:*?", "x" * 500, "'; --", "\n"):
        made = await line(world, 2, Terms(order_key=key))
        assert (await world.item(made[1].id)).terms == Terms(order_key=key)
        assert await world.drain() == ids(made), key


async def test_order_next_is_the_head_when_the_head_is_done(world: World) -> None:
    one, two, three = await line(world)
    await world.end(one, finished)
    assert await world.holds(two, three) == ["", "order"]
    count = await world.count()
    assert (count.ready, count.held, count.done) == (1, 1, 1)


async def test_order_next_is_given_by_the_same_settle(world: World) -> None:
    one, two, _ = await line(world)
    item = await world.lease_one()
    assert item.id == one.id
    settled = await world.settle(finished(item), then=asking(10))
    assert ids(next_leases(settled).items) == (two.id,)


@pytest.mark.parametrize("make", [failed, released, after_crash])
async def test_order_head_that_comes_back_stays_the_head(world: World, make: Callable[..., Settlement]) -> None:
    one, two, _ = await line(world)
    await world.finish(make(await world.lease_one(), delay=5 * SECOND))
    assert await world.lease(10) == ()
    assert await world.holds(one, two) == ["", "order"]
    world.tick(5 * SECOND)
    assert ids(await world.lease(10)) == (one.id,)


async def test_order_delayed_head_delays_its_key(world: World) -> None:
    late, soon = new(delay=10 * SECOND, terms=A), new(terms=A)
    await world.put(late, soon)
    assert await world.lease(10) == ()
    world.tick(10 * SECOND)
    assert await world.drain() == (late.id, soon.id)


async def test_order_delayed_follower_keeps_its_own_delay(world: World) -> None:
    soon, late = new(terms=A), new(delay=10 * SECOND, terms=A)
    await world.put(soon, late)
    await world.end(soon, finished)
    assert await world.lease(10) == ()
    world.tick(10 * SECOND)
    assert ids(await world.lease(10)) == (late.id,)


async def test_order_beats_priority(world: World) -> None:
    low, high = new(priority=Priority.LOW, terms=A), new(priority=Priority.HIGH, terms=A)
    await world.put(low, high)
    assert await world.drain() == (low.id, high.id)


async def test_order_of_a_crashed_head_is_kept(world: World) -> None:
    """A lapsed lease is still the head's: nobody overtakes it while the reaper is on its way."""
    one, two = await line(world, 2)
    await world.lease_one()
    world.tick(TTL + 1)
    assert await world.lease(10) == ()
    (lost,) = await world.store.reclaim("reaper", [QUEUE], TTL, 10)
    assert await world.lease(10) == ()
    await world.finish(after_crash(lost))
    assert await world.drain() == (one.id, two.id)


async def test_order_blocked_by_names_the_head(world: World) -> None:
    one, two, three = await line(world)
    assert await world.blocked_by(one.id) == ()
    assert await world.blocked_by(two.id) == (one.id,)
    assert await world.blocked_by(three.id) == (one.id,)
    await world.end(one, finished)
    assert await world.blocked_by(two.id) == ()
    assert await world.blocked_by(three.id) == (two.id,)


# --- a dead head ---


async def test_order_blocks_behind_a_dead_head(world: World) -> None:
    one, two, three = await broken_line(world, BLOCK)
    assert await world.lease(10) == ()
    assert await world.holds(two, three) == ["order", "order"]
    assert await world.blocked_by(three.id) == (one.id,)
    count = await world.count()
    assert (count.ready, count.held, count.parked, count.open) == (0, 2, 0, 1)
    await world.sound()


async def test_order_blocks_unless_told_otherwise(world: World) -> None:
    made = await line(world, 2)
    await world.end(made[0], dead)
    assert await world.lease(10) == ()
    assert (await world.store.settings(QUEUE)).order == "block"


async def test_order_parks_behind_a_dead_head(world: World) -> None:
    """Parked is no backlog: neither in what is held nor in how old the oldest is."""
    one, two, three = await broken_line(world, PARK)
    assert await world.lease(10) == ()
    assert await world.holds(two, three) == [PARKED, PARKED]
    assert await world.blocked_by(two.id) == (one.id,)
    count = await world.count()
    assert (count.ready, count.held, count.parked, count.open, count.oldest_due) == (0, 0, 2, 1, None)
    assert {item.hold for item in (await world.store.find(Match("hold", "=", "order"))).items} == {PARKED}
    await world.sound()


@pytest.mark.parametrize(("change", "hold"), [(BLOCK, "order"), (PARK, PARKED)])
async def test_order_what_is_put_behind_a_dead_head_waits_as_well(world: World, change: QueueChange, hold: str) -> None:
    made = await broken_line(world, change, 1)
    more = new(terms=A)
    await world.put(more)
    assert await world.holds(more) == [hold]
    assert await world.blocked_by(more.id) == (made[0].id,)
    assert await world.lease(10) == ()
    await world.sound()


async def test_order_skips_a_dead_head_and_marks_the_gap(world: World) -> None:
    one, two, three = await broken_line(world, SKIP)
    assert (await world.item(two.id)).gap == one.id
    assert await world.drain() == (two.id, three.id)
    assert (await world.item(three.id)).gap == one.id
    late = new(terms=A)
    await world.put(late)
    assert (await world.item(late.id)).gap == one.id
    await world.sound()


async def test_order_gap_is_that_of_the_last_dead_head(world: World) -> None:
    one, two, three = await broken_line(world, SKIP)
    await world.end(two, dead)
    assert [(await world.item(item.id)).gap for item in (two, three)] == [one.id, two.id]


@pytest.mark.parametrize("change", [Replay(), Discard()])
async def test_order_gap_closes_with_its_letter(world: World, change: Replay | Discard) -> None:
    (one,) = await broken_line(world, SKIP, 1)
    await world.store.amend(Ids((one.id,)), change, act())
    if isinstance(change, Replay):
        await world.end(one, finished)
    late = new(terms=A)
    await world.put(late)
    assert (await world.item(late.id)).gap == ""
    await world.sound()


async def test_order_is_read_when_the_head_dies(world: World) -> None:
    one, two, three = await broken_line(world, BLOCK)
    await world.set(SKIP)
    assert await world.lease(10) == ()
    other = await line(world, 2, B)
    await world.end(other[0], dead)
    assert ids(await world.lease(10)) == (other[1].id,)
    await world.set(PARK)
    assert await world.holds(two, three) == ["order", "order"]
    assert await world.blocked_by(two.id) == (one.id,)
    await world.sound()


async def test_order_of_follow_ups(world: World) -> None:
    """What a handler puts under its own key comes after what waits there already."""
    one, two = await line(world, 2)
    child = new(terms=A)
    await world.settle(finished(await world.lease_one(), follow_ups=[child]))
    assert await world.drain() == (two.id, child.id)
    assert (await world.item(one.id)).state is State.DONE


async def test_order_key_is_found(world: World) -> None:
    made = await line(world, 2)
    await world.put(new(terms=B), new())
    assert set(ids((await world.store.find(Match("key", "=", "a"))).items)) == set(ids(made))
    assert ids((await world.store.find(Match("hold", "=", "order"))).items) == (made[1].id,)
    assert len((await world.store.find(Match("key", "glob", "*"))).items) == 3


async def test_order_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    one, two, three = await broken_line(world, PARK)
    await world.store.close()
    world.store = await world.another()
    assert await world.holds(two, three) == [PARKED, PARKED]
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.drain() == ids((one, two, three))
    await world.sound()


async def test_order_of_many_keys_from_many_puts(world: World) -> None:
    """Interleaved as they come; each key runs in its own order."""
    keys = [f"k{number % 7}" for number in range(70)]
    made = [new(terms=Terms(order_key=key)) for key in keys]
    for start in range(0, 70, 10):
        await world.put(*made[start : start + 10])
    ran = await world.drain()
    for key in set(keys):
        mine = [item.id for item, its in zip(made, keys, strict=True) if its == key]
        assert [item_id for item_id in ran if item_id in mine] == mine
    assert (await world.count()).done == 70
    await world.sound()
