"""Dependencies and order keys together: an item has to wait for both, and its death is that of a head or follower."""

from __future__ import annotations

import random

import pytest

from redrive.core.acts import (
    Discard,
    Replay,
    Restore,
    Skip,
)
from redrive.core.item import Terms
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.verbs import QueueChange
from redrive.errors import BadDependency
from redrive.testing.conformance.after import OTHER, assert_died_along, dies, waits
from redrive.testing.conformance.kit import (
    PARKED,
    World,
    act,
    dead,
    finished,
    ids,
    new,
)
from redrive.testing.conformance.laws import check_no_ring


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


# --- no ring: who is waited for never stands behind those who wait ---


async def test_after_a_passed_one_that_is_replayed_it_follows(world: World) -> None:
    """At the tail it would stand behind the head of its key, which waits for it."""
    await world.set(QueueChange(order="skip"))
    one = new(terms=Terms(order_key="a"))
    two, three = waits(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(one, two, three)
    await world.end(one, dead)
    assert await world.holds(two, three) == ["after", "order"]
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(one, two, three) == ["", "after", "order"]
    assert await world.blocked_by(two.id) == (one.id,)
    assert await world.blocked_by(three.id) == (one.id,)
    count = await world.count()
    assert (count.ready, count.held, count.open) == (1, 2, 0)
    await world.sound()
    assert await world.drain() == ids((one, two, three))
    await world.sound()


async def test_after_a_passed_one_that_is_replayed_behind_a_head_that_can_run(world: World) -> None:
    await world.set(QueueChange(order="skip"))
    one, two = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    three, last = waits(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(one, two, three, last)
    await world.end(one, dead)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(one, two, three, last) == ["order", "", "after", "order"]
    await world.sound()
    assert await world.drain() == ids((two, one, three, last))


async def test_after_a_passed_one_that_is_replayed_into_a_parked_line(world: World) -> None:
    await world.set(QueueChange(order="skip"))
    one, two = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    three = waits(one, order_key="a")
    await world.put(one, two, three)
    await world.end(one, dead)
    await world.set(QueueChange(order="park"))
    await world.end(two, dead)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(one, three) == [PARKED, PARKED]
    assert (await world.count()).parked == 2
    await world.sound()
    await world.store.amend(Ids((two.id,)), Discard(), act())
    assert await world.drain() == ids((one, three))


async def test_after_a_passed_one_whose_line_began_anew(world: World) -> None:
    """Its place is older than those of a line that was forgotten and came again."""
    await world.set(QueueChange(order="skip"))
    others = [new(terms=Terms(order_key="a")) for _ in range(3)]
    one = new(terms=Terms(order_key="a"))
    await world.put(*others, one)
    for item in others:
        await world.end(item, finished)
    await world.end(one, dead)
    await world.store.amend(Ids((one.id,)), Discard(), act())
    await world.store.amend(Ids((one.id,)), Restore(), act())
    two = waits(one, order_key="a")
    await world.put(two)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(one, two) == ["", "after"]
    assert await world.drain() == ids((one, two))
    await world.sound()


async def test_after_one_that_died_along_it_dies_and_both_are_replayed(world: World) -> None:
    """A dead head that has to wait again lets what it waits for go first, though nobody waited when that came back."""
    root = new(queue=OTHER)
    head, one = new(terms=Terms(order_key="a")), dies(root, order_key="a")
    await world.put(root, head, one)
    await world.end(root, dead)
    await world.end(head, finished)
    two, late = dies(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(two)
    await world.put(late)
    await assert_died_along(world, two)
    assert await world.holds(late) == ["order"]
    await world.store.amend(Ids((one.id, two.id, root.id)), Replay(), act())
    assert await world.holds(one, two, late) == ["after", "after", "order"]
    assert await world.blocked_by(two.id) == (one.id,)
    assert await world.blocked_by(one.id) == (root.id,)
    await world.sound()
    assert await world.drain(OTHER) == (root.id,)
    assert await world.drain() == ids((one, two, late))
    await world.sound()


async def test_after_two_of_which_one_stands_before_it(world: World) -> None:
    """It died as a follower, and comes back behind what it waits for and before who waits for it."""
    root = new(queue=OTHER)
    head, before = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    one = dies(root, before, order_key="a")
    two, last = waits(one, order_key="a"), new(terms=Terms(order_key="a"))
    await world.put(root, head, before, one, two, last)
    await world.end(root, dead)
    await assert_died_along(world, one)
    await world.store.amend(Ids((one.id, root.id)), Replay(), act())
    assert await world.holds(head, before, one, two, last) == ["", "order", "after", "after", "order"]
    await world.end(root, finished)
    await world.sound()
    assert await world.drain() == ids((head, before, one, two, last))
    await world.sound()


async def test_after_one_that_comes_later_under_the_same_key_is_refused(world: World) -> None:
    """Each would wait for the other: the one for what it names, the other for its turn."""
    one, between = new(terms=Terms(order_key="a")), new()
    two, far = waits(one, order_key="a"), waits(between, order_key="a")
    chain = new(item_id=between.id, terms=Terms(after=(one.id,)))
    for call in ([two, one], [far, chain, one]):
        with pytest.raises(BadDependency, match="for ever"):
            await world.store.put(call)
    assert (await world.store.tally()).queues == ()
    elsewhere = waits(one, queue=OTHER, order_key="a")
    await world.put(elsewhere, one, two, chain, far)
    assert await world.drain(OTHER, "emails") == ids((one, elsewhere, two, chain, far))


async def _stir(world: World, rng: random.Random, known: list[str]) -> None:
    """A few of each: new items, ends, and acts on letters. Nothing is cancelled, so that all can still be done."""
    await world.set(QueueChange(order=rng.choice(("block", "park", "skip", "skip"))))
    for _ in range(rng.randint(1, 3)):
        after = tuple(rng.sample(known[-8:], min(len(known), rng.choice((0, 1, 1, 2)))))
        made = new(terms=Terms(rng.choice(("", "a", "a", "b")), after=after, on_dead=rng.choice(("wait", "die"))))
        await world.put(made)
        known.append(made.id)
    items = await world.lease(rng.randint(1, 2))
    await world.finish(*(rng.choice((finished, dead, dead))(item) for item in items))
    letters = ids((await world.store.find(Match("state", "=", "dead"), 1_000)).items)
    some = Ids(tuple(rng.sample(letters, min(len(letters), rng.randint(1, 4)))))
    for change in rng.choice(((Replay(),), (Replay(),), (Skip(),), (Discard(), Restore()), (Discard(),))):
        await world.store.amend(some, change, act())


@pytest.mark.parametrize(("seed", "rounds"), [(0, 10), (1, 10)])
async def test_after_everything_is_mended_everything_ends(world: World, seed: int, rounds: int) -> None:
    """Whatever died, was passed over, discarded and replayed in whatever order: nobody waits in a ring."""
    rng, known = random.Random(seed), list[str]()
    for _ in range(rounds):
        await _stir(world, rng, known)
        held = (await world.store.find(Match("hold", "glob", "*"), 1_000)).items
        check_no_ring({item.id: await world.blocked_by(item.id) for item in held})
    await world.sound()
    for _ in known:
        await world.store.amend(EVERYTHING, Restore(), act())
        await world.store.amend(EVERYTHING, Replay(), act())
        if not await world.drain():
            break
    assert (await world.count()).done == len(known)
    await world.sound()
