"""Acts on waiting items: due at once, with or without a new budget, or a dead letter without another attempt."""

from __future__ import annotations

import pytest
from msgspec import structs

from redrive.core.acts import (
    Amended,
    Cancel,
    Change,
    Expire,
    Replay,
    RunNow,
)
from redrive.core.item import Dedupe, Item, Letter, Terms
from redrive.core.select import Ids
from redrive.core.states import Disposition, State
from redrive.core.terms import DEPENDENCY, EXPIRED, EXPIRED_FAILURE
from redrive.core.verbs import QueueChange
from redrive.testing.conformance.kit import (
    DURABLE,
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    failed,
    finished,
    ids,
    new,
    skipped_ids,
)
from redrive.testing.conformance.wait import returns, started, waiter


def only(*items: Item | str) -> Ids:
    return Ids(tuple(item if isinstance(item, str) else item.id for item in items))


async def failed_once(world: World) -> Item:
    """Waits for its second attempt."""
    await world.put(new(item_id="failed"))
    item = await world.lease_one()
    await world.finish(failed(item, delay=TTL))
    return await world.item(item.id)


# --- run now ---


async def test_run_now_makes_a_waiting_item_due(world: World) -> None:
    item = await failed_once(world)
    world.tick(SECOND)
    assert await world.lease(5) == ()
    assert await world.store.amend(only(item), RunNow(), act()) == Amended((item.id,))
    assert await world.item(item.id) == structs.replace(item, due_at=world.clock.now())
    leased = await world.lease_one()
    assert (leased.id, leased.errors, leased.attempt) == (item.id, 1, 2)
    history = await world.store.get(item.id)
    assert [deed.change for deed in history.deeds] == ["run_now"]


async def test_run_now_may_give_a_new_budget(world: World) -> None:
    """Then it is a first attempt again, also for those who ask for few retries."""
    item = await failed_once(world)
    world.tick(SECOND)
    await world.store.amend(only(item), RunNow(reset=True), act())
    now = world.clock.now()
    expected = structs.replace(item, due_at=now, renewed_at=now, attempt=0, errors=0)
    assert await world.item(item.id) == expected
    await world.put(new())
    assert ids(await world.lease(1, retries=0)) == (item.id,)
    await world.sound()


async def test_run_now_with_a_new_budget_takes_the_last_chance_and_crashes_away(world: World) -> None:
    letter = await world.letter()
    await world.store.amend(only(letter), Replay("once", delay=TTL), act())
    await world.store.amend(only(letter), RunNow(reset=True), act())
    after = await world.lease_one()
    assert (after.last_chance, after.replays, after.crashes, after.attempt) == (False, 1, 0, 1)
    await world.sound()


async def test_run_now_does_not_end_a_wait_for_others(world: World) -> None:
    first, second = new(terms=Terms("k")), new(delay=TTL, terms=Terms("k"))
    await world.put(first, second)
    await world.store.amend(only(second.id), RunNow(), act())
    assert ids(await world.lease(5)) == (first.id,)
    await world.finish(finished(await world.item(first.id)))
    assert ids(await world.lease(5)) == (second.id,)
    await world.sound()


async def test_run_now_wakes_who_waits(world: World) -> None:
    await world.put(new(item_id="later", delay=TTL))
    waiting = waiter(world)
    await started(world, waiting)
    await world.store.amend(only("later"), RunNow(), act())
    await returns(waiting)
    assert ids(await world.lease(5)) == ("later",)


# --- expire ---


async def test_expire_makes_a_letter_of_what_was_never_tried(world: World) -> None:
    made = new(delay=TTL)
    await world.put(made)
    before = await world.item(made.id)
    world.tick(SECOND)
    assert await world.store.amend(only(before), Expire(), act()) == Amended((before.id,))
    now = world.clock.now()
    letter = Letter(EXPIRED, now, Disposition.OPEN, EXPIRED_FAILURE)
    history = await world.store.get(made.id)
    assert history.item == structs.replace(before, state=State.DEAD, ended_at=now, letter=letter)
    assert (history.attempts, [deed.change for deed in history.deeds]) == ((), ["expire"])
    (tally,) = (await world.store.tally()).queues
    assert (tally.ready, tally.open) == (0, 1)
    (cause,) = await world.store.causes()
    assert (cause.cause, cause.count, cause.error) == (EXPIRED, 1, EXPIRED_FAILURE.type)
    await world.sound()


async def test_expire_leaves_a_letter_like_any_other(world: World) -> None:
    item = await failed_once(world)
    await world.store.amend(only(item), Expire(), act())
    expired = await world.item(item.id)
    assert (expired.errors, expired.attempt, expired.deliveries) == (1, 1, 1)
    assert (await world.store.amend(only(item), Replay(), act())).changed == (item.id,)
    again = await world.lease_one()
    assert (again.attempt, again.deliveries, again.replays) == (1, 2, 1)
    await world.finish(finished(again))
    await world.sound()


@pytest.mark.parametrize("order", ["block", "park", "skip"])
async def test_expire_of_a_head_is_the_death_of_a_head(world: World, order: str) -> None:
    await world.store.configure(QUEUE, QueueChange(order=order))  # type: ignore[arg-type] # one of the three
    first, second = new(delay=TTL, terms=Terms("k")), new(terms=Terms("k"))
    await world.put(first, second)
    await world.store.amend(only(first.id), Expire(), act())
    follower = await world.item(second.id)
    expected = {"block": ("order", ""), "park": ("parked:order", ""), "skip": ("", first.id)}
    assert (follower.hold, follower.gap) == expected[order]
    await world.sound()
    await world.store.amend(only(first.id), Replay(), act())
    assert ids(await world.lease(5))[:1] == ((second.id if order == "skip" else first.id),)
    await world.sound()


async def test_expire_frees_keys_and_ends_those_that_die_with_it(world: World) -> None:
    twin = Terms(limit_key="l", dedupe=Dedupe("d"))
    first = new(delay=TTL, terms=twin)
    await world.put(first)
    dies, waits = new(terms=Terms(after=(first.id,), on_dead="die")), new(terms=Terms(after=(first.id,)))
    await world.put(dies, waits)
    await world.store.amend(only(first.id), Expire(), act())
    gone = await world.item(dies.id)
    assert gone.letter is not None
    assert (gone.letter.reason, (await world.item(waits.id)).hold) == (DEPENDENCY, "after")
    await world.put(new(terms=twin))
    await world.sound()


async def test_expire_of_a_follower_leaves_its_line(world: World) -> None:
    line = [new(terms=Terms("k")) for _ in range(3)]
    await world.put(*line)
    await world.store.amend(only(line[1].id), Expire(), act())
    for one in (line[0], line[2]):
        (leased,) = await world.lease(5)
        assert leased.id == one.id
        await world.finish(finished(leased))
    await world.sound()


# --- both ---


@pytest.mark.parametrize("change", [RunNow(), RunNow(reset=True), Expire()], ids=["run_now", "reset", "expire"])
async def test_waiting_acts_leave_what_runs_or_is_over(world: World, change: Change) -> None:
    letter, done, running, cancelled = await world.letter(), await world.done(), await world.held(), new(delay=TTL)
    await world.put(cancelled)
    await world.store.amend(only(cancelled.id), Cancel(), act())
    everyone = only(letter, done, running, cancelled.id)
    before = [await world.item(each) for each in everyone.ids]
    amended = await world.store.amend(everyone, change, act())
    assert (amended.changed, skipped_ids(amended)) == ((), everyone.ids)
    assert "only a waiting item" in amended.skipped[0].reason
    assert [await world.item(each) for each in everyone.ids] == before


async def test_waiting_acts_happen_once_for_a_request(world: World) -> None:
    item = await failed_once(world)
    by = act()
    await world.store.amend(only(item), RunNow(reset=True), by)
    world.tick(SECOND)
    before = await world.item(item.id)
    assert await world.store.amend(only(item), RunNow(reset=True), by) == Amended(already=(item.id,))
    assert await world.item(item.id) == before


async def test_waiting_acts_last(world: World) -> None:
    world.needs(DURABLE)
    item = await failed_once(world)
    other = new(delay=TTL)
    await world.put(other)
    await world.store.amend(only(item), RunNow(reset=True), act())
    await world.store.amend(only(other.id), Expire(), act())
    here = [await world.store.get(each) for each in (item.id, other.id)]
    store = await world.another()
    assert [await store.get(each) for each in (item.id, other.id)] == here
