"""Dependencies and order keys together: an item has to wait for both, and its death is that of a head or follower."""

from __future__ import annotations

import pytest

from redrive.core.item import Terms
from redrive.core.select import Match
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.after import OTHER, assert_died_along, dies, waits
from redrive.testing.conformance.kit import (
    PARKED,
    World,
    dead,
    finished,
    ids,
    new,
)


async def test_after_of_a_head_holds_its_line(world: World) -> None:
    one = new(queue=OTHER)
    head, follower = waits(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(one, head, follower)
    assert await world.holds(head, follower) == ["after", "order"]
    assert await world.lease(10) == ()
    await world.end(one, finished)
    assert await world.holds(head, follower) == ["", "order"]


async def test_after_of_a_follower_is_asked_before_its_turn(world: World) -> None:
    one = new(queue=OTHER)
    head, follower = new(terms=Terms(order_key="a")), waits(one, order_key="a")
    await world.put(one, head, follower)
    assert await world.holds(head, follower) == ["", "after"]
    assert await world.blocked_by(follower.id) == (one.id, head.id)
    await world.end(head, finished)
    assert await world.holds(follower) == ["after"]
    assert await world.blocked_by(follower.id) == (one.id,)
    await world.end(one, finished)
    assert await world.holds(follower) == [""]


async def test_after_of_a_follower_that_is_fulfilled_first(world: World) -> None:
    one = new(queue=OTHER)
    head, follower = new(terms=Terms(order_key="a")), waits(one, order_key="a")
    await world.put(one, head, follower)
    await world.end(one, finished)
    assert await world.holds(follower) == ["order"]
    await world.end(head, finished)
    assert await world.holds(follower) == [""]


async def test_after_of_a_parked_follower_is_shown_as_parked(world: World) -> None:
    await world.set(QueueChange(order="park"))
    one = new(queue=OTHER)
    head, follower = new(terms=Terms(order_key="a")), waits(one, order_key="a")
    await world.put(one, head, follower)
    await world.end(head, dead)
    assert await world.holds(follower) == [PARKED]
    assert (await world.count()).parked == 1
    # By what is kept: it waits for more than its turn.
    assert ids((await world.store.find(Match("hold", "=", "after"))).items) == (follower.id,)
    await world.sound()


@pytest.mark.parametrize(("order", "hold"), [("block", "order"), ("park", PARKED), ("skip", "")])
async def test_after_death_of_a_head_is_as_any_death_of_a_head(world: World, order: str, hold: str) -> None:
    await world.set(QueueChange(order=order))  # type: ignore[arg-type]
    one = new(queue=OTHER)
    head, follower = dies(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(one, head, follower)
    await world.end(one, dead)
    await assert_died_along(world, head)
    assert await world.holds(follower) == [hold]
    assert (await world.item(follower.id)).gap == (head.id if order == "skip" else "")
    await world.sound()


async def test_after_death_of_a_follower_leaves_the_line(world: World) -> None:
    one = new(queue=OTHER)
    head, follower, last = new(terms=Terms(order_key="a")), dies(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(one, head, follower, last)
    await world.end(one, dead)
    await assert_died_along(world, follower)
    await world.end(head, finished)
    assert await world.holds(last) == [""]
    await world.sound()


async def test_after_deaths_of_a_head_and_its_next_leave_one_gap(world: World) -> None:
    """What dies in the same write is never promoted first."""
    await world.set(QueueChange(order="skip"))
    one = new(queue=OTHER)
    head, next_one, last = dies(one, order_key="a"), dies(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(one, head, next_one, last)
    await world.end(one, dead)
    assert (await world.item(next_one.id)).gap == ""
    assert (await world.item(last.id)).gap == head.id
    await world.sound()
