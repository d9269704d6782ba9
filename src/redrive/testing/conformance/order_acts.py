"""Acts on the items of an order key: back at their place, out of the line, or past a gap."""

from __future__ import annotations

import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Discard,
    Replay,
    Restore,
    Skip,
)
from redrive.core.select import Ids
from redrive.core.states import State
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import (
    PARKED,
    World,
    act,
    dead,
    ids,
    new,
    skipped_ids,
)
from redrive.testing.conformance.order import BLOCK, PARK, SKIP, A, B, broken_line, line


@pytest.mark.parametrize("change", [BLOCK, PARK])
async def test_order_replay_of_a_dead_head_takes_its_place_again(world: World, change: QueueChange) -> None:
    """The promise of an order key survives a failure: first what came first."""
    one, two, three = await broken_line(world, change)
    late = new(terms=A)
    await world.put(late)
    assert (await world.store.amend(Ids((one.id,)), Replay(), act())).changed == (one.id,)
    assert await world.holds(one, two, three, late) == ["", "order", "order", "order"]
    count = await world.count()
    assert (count.ready, count.held, count.parked, count.open) == (1, 3, 0, 0)
    await world.sound()
    assert await world.drain() == ids((one, two, three, late))
    assert [(await world.item(item.id)).gap for item in (two, three)] == ["", ""]


async def test_order_replay_of_an_archived_head_takes_its_place_again(world: World) -> None:
    one, two, three = await broken_line(world, BLOCK)
    await world.store.amend(Ids((one.id,)), Archive(), act())
    assert await world.lease(10) == ()
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.drain() == ids((one, two, three))


async def test_order_replay_of_a_skipped_head_goes_to_the_tail(world: World) -> None:
    one, two, three = await broken_line(world, SKIP)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(one, two, three) == ["order", "", "order"]
    assert await world.drain() == ids((two, three, one))
    await world.sound()


async def test_order_replay_onto_an_empty_line_is_its_head(world: World) -> None:
    (one,) = await broken_line(world, SKIP, 1)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    late = new(terms=A)
    await world.put(late)
    assert await world.drain() == (one.id, late.id)


async def test_order_replayed_head_that_dies_again_blocks_again(world: World) -> None:
    one, two, _ = await broken_line(world, PARK)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    await world.end(one, dead)
    assert await world.holds(two) == [PARKED]
    assert (await world.count()).parked == 2
    await world.sound()


@pytest.mark.parametrize("change", [BLOCK, PARK])
async def test_order_discard_of_a_dead_head_lets_the_others_go_on(world: World, change: QueueChange) -> None:
    one, two, three = await broken_line(world, change)
    await world.store.amend(Ids((one.id,)), Discard(), act())
    count = await world.count()
    assert (count.ready, count.held, count.parked, count.trash) == (1, 1, 0, 1)
    assert (await world.item(two.id)).gap == ""
    await world.sound()
    assert await world.drain() == (two.id, three.id)


@pytest.mark.parametrize("change", [BLOCK, PARK])
async def test_order_skip_of_a_dead_head_lets_the_others_go_on_past_a_gap(world: World, change: QueueChange) -> None:
    one, two, three = await broken_line(world, change)
    amended = await world.store.amend(Ids((one.id,)), Skip(), act())
    assert amended.changed == (one.id,)
    letter = await world.store.get(one.id)
    assert (letter.item.state, letter.deeds[-1].change) == (State.DEAD, "skip")
    assert (await world.item(two.id)).gap == one.id
    count = await world.count()
    assert (count.ready, count.held, count.parked, count.open) == (1, 1, 0, 1)
    await world.sound()
    assert await world.drain() == (two.id, three.id)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.drain() == (one.id,)


async def test_order_skip_of_what_keeps_nothing_back_is_skipped(world: World) -> None:
    (passed,) = await broken_line(world, SKIP, 1)
    plain = await world.letter()
    await world.set(BLOCK)
    blocking = await line(world, 1, B)
    await world.end(blocking[0], dead)
    waiting = new(terms=B)
    await world.put(waiting)
    amended = await world.store.amend(Ids((passed.id, plain.id, waiting.id, blocking[0].id)), Skip(), act())
    assert set(skipped_ids(amended)) == {passed.id, plain.id, waiting.id}
    assert amended.changed == (blocking[0].id,)
    assert skipped_ids(await world.store.amend(Ids((blocking[0].id,)), Skip(), act())) == (blocking[0].id,)


async def test_order_restore_of_a_discarded_head_moves_nobody(world: World) -> None:
    one, two, _ = await broken_line(world, BLOCK)
    await world.store.amend(Ids((one.id,)), Discard(), act())
    await world.store.amend(Ids((one.id,)), Restore(), act())
    assert await world.holds(two) == [""]
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(one) == ["order"]
    await world.sound()


async def test_order_cancel_of_a_follower_takes_it_out_of_the_line(world: World) -> None:
    one, two, three = await line(world)
    await world.store.amend(Ids((two.id,)), Cancel(), act())
    assert await world.holds(one, two, three) == ["", "", "order"]
    assert await world.blocked_by(two.id) == ()
    assert await world.drain() == (one.id, three.id)
    await world.sound()


async def test_order_cancel_of_a_ready_head_lets_the_next_go_on(world: World) -> None:
    one, two, three = await line(world)
    await world.store.amend(Ids((one.id, two.id)), Cancel(), act())
    assert await world.holds(three) == [""]
    assert await world.drain() == (three.id,)
    await world.sound()


async def test_order_of_a_parked_follower_that_is_cancelled(world: World) -> None:
    _, two, _ = await broken_line(world, PARK)
    await world.store.amend(Ids((two.id,)), Cancel(), act())
    count = await world.count()
    assert (count.parked, count.held, count.cancelled) == (1, 0, 1)
    await world.sound()
