"""A verb happens completely or not at all: to those who look meanwhile, and to those who are cut off in the middle.

A handle's caller may be cancelled at any point where it waits. What it asked for has then happened or not, and a repeat
under the same ids, nonce or request id makes it happen once. A store that moves an item in two steps loses it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

import pytest

from redrive.core.acts import Discard, Replay
from redrive.core.item import Dedupe, Item, Terms
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.verbs import (
    QueueChange,
    QueueTally,
    Verdict,
)
from redrive.testing.conformance.kit import (
    QUEUE,
    TTL,
    World,
    act,
    asking,
    counted,
    dead,
    failed,
    failure,
    ids,
    new,
    news,
    verdicts,
)
from redrive.testing.conformance.model import check_item

TURNS = (0, 1, 2, 4, 8)
SINGLE_TURNS = 6
"""A caller is cut off after so many turns of the loop, which finds each place where a verb waits in this thread; beyond
them after parts of a millisecond, for those that wait for another."""


def total(row: QueueTally) -> int:
    live = row.ready + row.held + row.parked + row.leased
    return live + row.done + row.open + row.archived + row.trash + row.cancelled


async def look_while(world: World, work: Awaitable[None]) -> set[tuple[int, int]]:
    """(counted by tally, found by find) as another handle sees it while the work goes on, and no item half moved."""
    reader = await world.another()
    working = asyncio.ensure_future(work)
    seen = set()
    looked_at: list[Item] = []
    while True:
        over = working.done()
        (row,) = (await reader.tally()).queues
        items = (await reader.find(EVERYTHING, 100)).items
        seen.add((total(row), len(items)))
        looked_at.extend(items)
        if over:
            break
    await working
    for item in looked_at:
        check_item(item)
    return seen


async def cut_off(world: World, call: Awaitable[object], turns: int) -> None:
    """Start the call, let the loop turn so often, cancel it."""
    task = asyncio.ensure_future(call)
    for turn in range(turns):
        if turn < SINGLE_TURNS:
            await world.clock.sleep(0)
        else:
            await asyncio.wait({task}, timeout=0.000_3)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def assert_exactly(world: World, *item_ids: str) -> None:
    """These items, each once, nothing beside them, and counted so."""
    everything = (await world.store.find(EVERYTHING, 100)).items
    assert sorted(ids(everything)) == sorted(item_ids)
    assert await world.count() == counted(everything, QUEUE)


async def test_lease_is_one_step_to_those_who_look(world: World) -> None:
    """A leased item is never gone from sight: no pop now and store later."""
    await world.put(*news(10))

    async def work() -> None:
        for _ in range(10):
            assert len(await world.lease(1)) == 1

    assert await look_while(world, work()) == {(10, 10)}


async def test_settle_is_one_step_to_those_who_look(world: World) -> None:
    """A dying item is never in both places and never in neither."""
    await world.put(*news(10))
    items = await world.lease(10)

    async def work() -> None:
        for item in items:
            await world.finish(dead(item))

    assert await look_while(world, work()) == {(10, 10)}
    assert (await world.count()).open == 10


async def test_amend_is_one_step_to_those_who_look(world: World) -> None:
    letters = await world.letters(8)

    async def work() -> None:
        for letter in letters:
            await world.store.amend(Ids((letter.id,)), Replay(), act())

    assert await look_while(world, work()) == {(8, 8)}


@pytest.mark.parametrize("turns", TURNS)
async def test_put_cut_off_is_all_or_none(world: World, turns: int) -> None:
    made = news(5)
    await cut_off(world, world.store.put(made), turns)
    result = await world.store.put(made)
    assert result.added in ((), ids(made))
    assert sorted(result.added + result.already) == sorted(ids(made))
    await assert_exactly(world, *ids(made))


@pytest.mark.parametrize("turns", TURNS)
async def test_lease_cut_off_loses_nothing(world: World, turns: int) -> None:
    made = news(4)
    await world.put(*made)
    request = asking(3)
    await cut_off(world, world.store.lease(request), turns)
    leases = await world.store.lease(request)
    assert ids(leases.items) == ids(made[:3])
    assert [item.deliveries for item in leases.items] == [1, 1, 1]
    count = await world.count()
    assert (count.leased, count.ready) == (3, 1)
    await assert_exactly(world, *ids(made))


@pytest.mark.parametrize("turns", TURNS)
async def test_settle_cut_off_is_all_or_none(world: World, turns: int) -> None:
    """Letter, evidence, counters and follow-up together, or the lease as it was."""
    item = await world.held()
    child = new()
    why = failure()
    settlement = dead(item, why=why, follow_ups=[child])
    await cut_off(world, world.store.settle([settlement]), turns)
    (verdict,) = verdicts(await world.settle(settlement))
    assert verdict in {Verdict.APPLIED, Verdict.ALREADY}
    history = await world.store.get(item.id)
    assert (history.item.state, history.item.errors) == (State.DEAD, 1)
    assert history.item.letter is not None
    assert history.item.letter.failure == why
    assert history.attempts == (settlement.attempt,)
    assert (await world.item(child.id)).state is State.READY
    assert [row.count for row in await world.store.causes()] == [1]
    await assert_exactly(world, item.id, child.id)


@pytest.mark.parametrize("turns", TURNS)
async def test_settle_of_a_retry_cut_off_loses_nothing(world: World, turns: int) -> None:
    item = await world.held()
    settlement = failed(item)
    await cut_off(world, world.store.settle([settlement]), turns)
    await world.settle(settlement)
    history = await world.store.get(item.id)
    assert (history.item.state, history.item.errors, len(history.attempts)) == (State.READY, 1, 1)
    await assert_exactly(world, item.id)
    assert ids(await world.lease(5)) == (item.id,)


@pytest.mark.parametrize("turns", TURNS)
async def test_settle_of_a_bound_item_cut_off_moves_the_others_too(world: World, turns: int) -> None:
    """Its line, its dependents and theirs, its keys: all in the same write as its death."""
    await world.set(QueueChange(order="skip", max_per_key=1))
    bound = Terms("o", "l", Dedupe("d"))
    head, follower, aside = new(terms=bound), new(terms=Terms("o")), new(terms=Terms(limit_key="l"))
    child = new(terms=Terms(after=(head.id,), on_dead="die"))
    grandchild = new(terms=Terms(after=(child.id,), on_dead="die"))
    await world.put(head, follower, aside, child, grandchild)
    item = await world.grab(head.id)
    settlement = dead(item)
    await cut_off(world, world.store.settle([settlement]), turns)
    await world.settle(settlement)
    states = [(await world.item(one.id)).state for one in (head, child, grandchild)]
    assert states == [State.DEAD] * 3
    assert await world.holds(follower, aside) == ["", ""]
    assert (await world.item(follower.id)).gap == head.id
    assert len((await world.store.put([new(terms=bound)])).added) == 1
    await world.sound()


@pytest.mark.parametrize("turns", TURNS)
async def test_put_of_bound_items_cut_off_is_all_or_none(world: World, turns: int) -> None:
    first = new(terms=Terms("o"))
    made = (first, new(terms=Terms("o", "l", Dedupe("d"), (first.id,))), new(terms=Terms("o")))
    await cut_off(world, world.store.put(made), turns)
    result = await world.store.put(made)
    assert result.added in ((), ids(made))
    assert result.duplicates == ()
    assert await world.holds(*made) == ["", "after", "order"]
    await world.sound()
    assert await world.drain() == ids(made)


@pytest.mark.parametrize("turns", TURNS)
async def test_amend_cut_off_changes_once(world: World, turns: int) -> None:
    letters = await world.letters(3)
    by = act()
    selection = Ids(ids(letters))
    await cut_off(world, world.store.amend(selection, Replay(), by), turns)
    amended = await world.store.amend(selection, Replay(), by)
    assert (len(amended.changed), len(amended.already)) in {(0, 3), (3, 0)}
    for letter in letters:
        history = await world.store.get(letter.id)
        assert (history.item.state, history.item.replays) == (State.READY, 1)
        assert (len(history.deeds), len(history.attempts)) == (1, 1)
    await assert_exactly(world, *ids(letters))
    assert len(await world.store.journal("audit")) == 1


@pytest.mark.parametrize("turns", TURNS)
async def test_prune_cut_off_leaves_a_tombstone(world: World, turns: int) -> None:
    letter = await world.letter()
    await world.store.amend(Ids((letter.id,)), Discard(), act())
    by = act()
    await cut_off(world, world.store.prune(EVERYTHING, 5, by), turns)
    await world.store.prune(EVERYTHING, 5, by)
    assert await world.store.tombstone(letter.id) is not None
    assert await world.history(letter.id) is None
    assert len([entry for entry in await world.store.journal("audit") if entry.request_id == by.request_id]) == 1
    await assert_exactly(world)


@pytest.mark.parametrize("turns", TURNS)
async def test_reclaim_cut_off_leaves_a_lease_that_lapses(world: World, turns: int) -> None:
    item = await world.held()
    world.tick(TTL + 1)
    await cut_off(world, world.store.reclaim("reaper", [QUEUE], TTL, 5), turns)
    # What was cut off may still be on its way; a write of the same handle comes after it.
    await world.put(new(queue="barrier"))
    after = await world.item(item.id)
    assert (after.state, after.deliveries) in {(State.LEASED, 1), (State.LEASED, 2)}
    world.tick(TTL + 1)
    (taken,) = await world.store.reclaim("reaper-2", [QUEUE], TTL, 5)
    assert (taken.id, taken.attempt) == (item.id, 1)
    assert (await world.count()).leased == 1
