"""Dependencies: an item runs when all that it waits for is done, in any queue; with a dead one it waits or dies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.core.acts import (
    Cancel,
    Discard,
    Replay,
)
from redrive.core.item import BLOCKERS, Item, NewItem, Terms
from redrive.core.select import Ids
from redrive.core.states import Disposition, State
from redrive.core.terms import DEPENDENCY, DEPENDENCY_FAILURE
from redrive.core.verbs import PutResult, Settlement
from redrive.errors import BadDependency, ConfigError
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    World,
    act,
    asking,
    dead,
    failed,
    finished,
    fresh,
    ids,
    new,
    next_leases,
    released,
)

OTHER = "other"


def waits(*awaited: NewItem | str, queue: str = QUEUE, **terms: str) -> NewItem:
    after = tuple(one if isinstance(one, str) else one.id for one in awaited)
    return new(queue=queue, terms=Terms(after=after, **terms))  # type: ignore[arg-type]


def dies(*awaited: NewItem | str, queue: str = QUEUE, **terms: str) -> NewItem:
    return waits(*awaited, queue=queue, on_dead="die", **terms)


async def assert_died_along(world: World, item: NewItem, deliveries: int = 0) -> None:
    found = await world.item(item.id)
    assert found.letter is not None
    assert (found.state, found.hold, found.ended_at) == (State.DEAD, "", world.clock.now())
    assert (found.letter.reason, found.letter.failure) == (DEPENDENCY, DEPENDENCY_FAILURE)
    assert (found.letter.disposition, found.letter.route) == (Disposition.OPEN, "")
    assert (found.deliveries, found.attempt, found.errors) == (deliveries, deliveries, 0)
    assert await world.blocked_by(item.id) == ()


async def test_after_waits_until_all_are_done(world: World) -> None:
    one, two = new(), new(queue=OTHER)
    last = waits(one, two)
    await world.put(one, two)
    await world.put(last)
    assert await world.holds(last) == ["after"]
    assert await world.blocked_by(last.id) == (one.id, two.id)
    await world.end(one, finished)
    assert await world.blocked_by(last.id) == (two.id,)
    assert await world.lease(10) == ()
    assert (await world.count()).held == 1
    await world.end(two, finished)
    assert await world.holds(last) == [""]
    assert ids(await world.lease(10)) == (last.id,)
    await world.sound()


async def test_after_is_freed_in_the_settle_that_ends_the_wait(world: World) -> None:
    one = new()
    last = waits(one)
    await world.put(one, last)
    settled = await world.settle(finished(await world.lease_one()), then=asking(5))
    assert ids(next_leases(settled).items) == (last.id,)


async def test_after_of_one_batch_that_ends_all(world: World) -> None:
    firsts = [new() for _ in range(3)]
    last = waits(*firsts)
    await world.put(*firsts, last)
    await world.finish(*(finished(item) for item in await world.lease(3)))
    assert await world.holds(last) == [""]


async def test_after_within_one_call_in_any_order(world: World) -> None:
    one = new()
    two = waits(one)
    three = waits(two, one)
    await world.put(three, two, one)
    assert await world.holds(three, two, one) == ["after", "after", ""]
    for item in (one, two, three):
        assert ids(await world.lease(10)) == (item.id,)
        await world.finish(finished(await world.item(item.id)))
    await world.sound()


async def test_after_what_is_done_already_is_no_wait(world: World) -> None:
    done, pruned = await world.done(), await world.done()
    await world.store.prune(Ids((pruned.id,)), 1, act())
    item = waits(done.id, pruned.id)
    await world.put(item)
    assert await world.holds(item) == [""]
    assert (await world.item(item.id)).terms == item.terms


async def test_after_is_kept_as_it_was_put(world: World) -> None:
    one, two = new(), new()
    item = waits(two, one, two)
    await world.put(one, two, item)
    assert (await world.item(item.id)).terms == Terms(after=(two.id, one.id, two.id))
    assert await world.blocked_by(item.id) == (one.id, two.id)


async def test_after_keeps_its_own_delay(world: World) -> None:
    one = new()
    item = new(delay=5 * SECOND, terms=Terms(after=(one.id,)))
    await world.put(one, item)
    await world.end(one, finished)
    assert await world.lease(10) == ()
    world.tick(5 * SECOND)
    assert ids(await world.lease(10)) == (item.id,)


@pytest.mark.parametrize("make", [failed, released])
async def test_after_what_comes_back_is_still_awaited(world: World, make: Callable[[Item], Settlement]) -> None:
    one = new()
    last = waits(one)
    await world.put(one, last)
    await world.end(one, make)
    assert await world.holds(last) == ["after"]


async def test_after_names_no_more_blockers_than_can_be_read(world: World) -> None:
    firsts = [new() for _ in range(BLOCKERS + 5)]
    last = waits(*firsts)
    await world.put(*firsts, last)
    assert await world.blocked_by(last.id) == ids(firsts[:BLOCKERS])


async def test_after_one_many_may_wait(world: World) -> None:
    one = new()
    many = [waits(one, queue=f"q{number % 3}") for number in range(30)]
    await world.put(one, *many)
    assert [(await world.count(f"q{number}")).held for number in range(3)] == [10, 10, 10]
    await world.end(one, finished)
    assert [(await world.count(f"q{number}")).ready for number in range(3)] == [10, 10, 10]
    await world.sound()


# --- what is refused ---


async def test_after_an_unknown_id_is_refused_with_all_of_the_call(world: World) -> None:
    good, bad = new(), waits("nobody")
    with pytest.raises(BadDependency, match="nobody") as caught:
        await world.store.put([good, bad])
    assert caught.value.field == "after"
    assert (await world.history(good.id), await world.history(bad.id)) == (None, None)
    assert (await world.store.tally()).queues == ()


async def test_after_each_other_is_refused(world: World) -> None:
    one, two = fresh(), fresh()
    ring = [
        new(item_id=one, terms=Terms(after=(two,))),
        new(item_id=two, terms=Terms(after=(one,))),
    ]
    with pytest.raises(BadDependency, match="for ever"):
        await world.store.put(ring)
    with pytest.raises(BadDependency, match="for ever"):
        await world.store.put([new(item_id=one, terms=Terms(after=(one,)))])
    assert await world.history(one) is None


async def test_after_in_a_follow_up_is_refused(world: World) -> None:
    item = await world.held()
    with pytest.raises(ConfigError) as caught:
        await world.settle(finished(item, follow_ups=[waits(item.id)]))
    assert caught.value.field == "after"
    assert await world.item(item.id) == item


# --- one of them dies ---


async def test_after_a_dead_one_it_waits_and_says_so(world: World) -> None:
    one, two = new(), new()
    last = waits(one, two)
    await world.put(one, two, last)
    await world.end(one, dead)
    await world.end(two, finished)
    assert await world.holds(last) == ["after"]
    assert await world.blocked_by(last.id) == (one.id,)
    late = waits(one)
    await world.put(late)
    assert await world.holds(late) == ["after"]
    await world.sound()


async def test_after_a_dead_one_that_is_replayed_and_done_it_runs(world: World) -> None:
    one = new()
    last = waits(one)
    await world.put(one, last)
    await world.end(one, dead)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    assert await world.holds(last) == ["after"]
    await world.end(one, finished)
    assert ids(await world.lease(10)) == (last.id,)
    await world.sound()


async def test_after_a_dead_one_it_dies_if_told_so(world: World) -> None:
    one, two = new(), new()
    last = dies(one, two)
    await world.put(one, two, last)
    world.tick(SECOND)
    await world.end(one, dead)
    await assert_died_along(world, last)
    count = await world.count()
    assert (count.open, count.held, count.ready) == (2, 0, 1)
    assert [row.cause for row in await world.store.causes()].count(DEPENDENCY) == 1
    await world.sound()


async def test_after_deaths_spread_over_queues_in_one_write(world: World) -> None:
    one = new()
    two = dies(one, queue=OTHER)
    three = dies(two, queue="third")
    both = dies(three, one)
    patient = waits(two)
    await world.put(one, two, three, both, patient)
    await world.end(one, dead)
    for item in (two, three, both):
        await assert_died_along(world, item)
    assert await world.holds(patient) == ["after"]
    assert await world.blocked_by(patient.id) == (two.id,)
    await world.sound()


async def test_after_a_cancelled_one_is_as_after_a_dead_one(world: World) -> None:
    one = new(delay=SECOND)
    patient, mortal = waits(one), dies(one)
    grandchild = dies(mortal)
    await world.put(one, patient, mortal, grandchild)
    await world.store.amend(Ids((one.id,)), Cancel(), act())
    assert await world.holds(patient) == ["after"]
    assert await world.blocked_by(patient.id) == (one.id,)
    await assert_died_along(world, mortal)
    await assert_died_along(world, grandchild)
    await world.sound()


@pytest.mark.parametrize("pruned", [False, True])
async def test_after_what_is_lost_already_it_enters_as_a_letter(world: World, pruned: bool) -> None:  # noqa: FBT001 - pytest's call
    letter, cancelled = await world.letter(), new(delay=SECOND)
    await world.put(cancelled)
    await world.store.amend(Ids((cancelled.id,)), Cancel(), act())
    if pruned:
        await world.store.amend(Ids((letter.id,)), Discard(), act())
        assert len(await world.store.prune(Ids((letter.id, cancelled.id)), 2, act())) == 2
    for lost in (letter.id, cancelled.id):
        mortal = dies(lost)
        child = dies(mortal)
        patient = waits(mortal)
        assert await world.store.put([child, mortal, patient]) == PutResult((child.id, mortal.id, patient.id))
        await assert_died_along(world, mortal)
        await assert_died_along(world, child)
        assert await world.holds(patient) == ["after"]
        assert await world.blocked_by(patient.id) == (mortal.id,)
    await world.sound()


@pytest.mark.parametrize("pruned", [False, True])
async def test_after_what_can_never_be_done_is_refused(world: World, pruned: bool) -> None:  # noqa: FBT001 - pytest's call
    """Nobody could ever mend it. A letter can be replayed, from the trash as well, and is waited for."""
    letter, cancelled = await world.letter(), new(delay=SECOND)
    await world.put(cancelled)
    await world.store.amend(Ids((cancelled.id,)), Cancel(), act())
    await world.store.amend(Ids((letter.id,)), Discard(), act())
    good, patient = new(), waits(letter.id)
    await world.put(patient)
    assert await world.blocked_by(patient.id) == (letter.id,)
    hopeless = [cancelled.id]
    if pruned:
        assert len(await world.store.prune(Ids((letter.id, cancelled.id)), 2, act())) == 2
        hopeless.append(letter.id)
    for lost in hopeless:
        bad = waits(good, lost)
        with pytest.raises(BadDependency, match="never be done") as caught:
            await world.store.put([good, bad])
        assert caught.value.field == "after"
        assert (await world.history(good.id), await world.history(bad.id)) == (None, None)
    await world.sound()


@pytest.mark.parametrize("pruned", [False, True])
async def test_after_the_lost_a_letter_is_replayed_only_by_force(world: World, pruned: bool) -> None:  # noqa: FBT001 - pytest's call
    """It would leave the letters, and wait where nobody looks for it, for ever."""
    lost, other = new(delay=SECOND), new(delay=SECOND)
    last = dies(lost, other)
    await world.put(lost, other, last)
    await world.store.amend(Ids((lost.id,)), Cancel(), act())
    assert (await world.item(last.id)).state is State.DEAD
    if pruned:
        await world.store.prune(Ids((lost.id,)), 1, act())
    amended = await world.store.amend(Ids((last.id,)), Replay(), act())
    assert [(one.id, lost.id in one.reason) for one in amended.skipped] == [(last.id, True)]
    assert (await world.item(last.id)).state is State.DEAD
    assert (await world.store.amend(Ids((last.id,)), Replay(force=True), act())).changed == (last.id,)
    assert await world.blocked_by(last.id) == ()
    (run,) = await world.lease(5)
    assert run.id == last.id
    await world.sound()


async def test_after_is_asked_again_when_it_is_replayed(world: World) -> None:
    """It died with one of two: replayed, it waits for whatever is not done, and dies along no more than once."""
    one, two = new(), new()
    last = dies(one, two)
    await world.put(one, two, last)
    await world.end(one, dead)
    assert (await world.store.amend(Ids((last.id,)), Replay(), act())).changed == (last.id,)
    assert await world.holds(last) == ["after"]
    assert await world.blocked_by(last.id) == (one.id, two.id)
    await world.end(two, finished)
    await world.store.amend(Ids((one.id,)), Replay(), act())
    await world.end(one, finished)
    assert ids(await world.lease(10)) == (last.id,)
    await world.sound()


async def test_after_a_replayed_one_that_dies_again_it_dies_again(world: World) -> None:
    one = new()
    last = dies(one)
    await world.put(one, last)
    await world.end(one, dead)
    await world.store.amend(Ids((last.id, one.id)), Replay(), act())
    await world.end(one, dead)
    await assert_died_along(world, last)


async def test_after_an_own_death_is_replayed_without_a_wait(world: World) -> None:
    one = new()
    last = waits(one)
    await world.put(one, last)
    await world.end(one, finished)
    await world.end(last, dead)
    await world.store.amend(Ids((last.id,)), Replay(), act())
    assert ids(await world.lease(10)) == (last.id,)


async def test_after_one_that_is_cancelled_itself_nobody_waits(world: World) -> None:
    one = new()
    last = waits(one)
    await world.put(one, last)
    await world.store.amend(Ids((last.id,)), Cancel(), act())
    await world.end(one, finished)
    assert (await world.item(last.id)).state is State.CANCELLED
    assert (await world.count()).held == 0
    await world.sound()


async def test_after_survives_reopening(world: World) -> None:
    world.needs(DURABLE)
    one, two = new(), new()
    last, mortal = waits(one, two), dies(two)
    await world.put(one, two, last, mortal)
    await world.end(one, finished)
    await world.store.close()
    world.store = await world.another()
    assert await world.blocked_by(last.id) == (two.id,)
    await world.end(two, dead)
    await assert_died_along(world, mortal)
    await world.sound()


async def test_after_a_long_chain(world: World) -> None:
    """Deep, not wide: no recursion that ends before the chain does."""
    made = [new()]
    for _ in range(1_500):
        made.append(dies(made[-1]))
    await world.put(*made)
    await world.end(made[0], dead)
    assert (await world.count()).open == len(made)
    assert (await world.store.check()).findings == ()
