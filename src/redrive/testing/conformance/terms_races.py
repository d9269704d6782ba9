"""Races between items that are bound to each other: whoever comes first, nobody is stuck, doubled or past a limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from redrive.core.acts import (
    Cancel,
    Change,
    Discard,
    Replay,
    Skip,
)
from redrive.core.item import Dedupe, Item, NewItem, Priority, Terms
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.verbs import (
    PutResult,
    QueueChange,
    Verdict,
)
from redrive.errors import BadDependency
from redrive.stores.base import Store
from redrive.testing.conformance.kit import (
    World,
    act,
    after_crash,
    asking,
    dead,
    failed,
    finished,
    fresh,
    ids,
    new,
    news,
    next_leases,
    released,
    verdicts,
)

ROUNDS = 8
OTHER = "other"


async def handles(world: World) -> list[Store]:
    return [world.store, await world.another()]


async def at_once(turn: int, *calls: Awaitable[Any]) -> list[Any]:
    """All together, in another order each turn; the answers in the order of the calls."""
    order = list(range(len(calls)))
    random.Random(turn).shuffle(order)
    answers = await asyncio.gather(*(calls[index] for index in order))
    return [answers[order.index(index)] for index in range(len(calls))]


# --- dedupe ---


async def test_race_of_enqueues_of_one_key_adds_one(world: World) -> None:
    stores = await handles(world)
    made = [new(terms=Terms(dedupe=Dedupe("k"))) for _ in range(64)]
    results: list[PutResult] = await asyncio.gather(
        *(stores[number % 2].put([item]) for number, item in enumerate(made))
    )
    added = [item_id for result in results for item_id in result.added]
    assert len(added) == 1
    told = {duplicate.of for result in results for duplicate in result.duplicates}
    assert told == set(added)
    assert sum(len(result.duplicates) for result in results) == 63
    assert (await world.count()).ready == 1
    await world.sound()


async def test_race_of_batches_with_the_same_keys_adds_each_once(world: World) -> None:
    """In both directions, where those who lock one after the other would meet halfway."""
    stores = await handles(world)
    keys = [f"k{number}" for number in range(12)]
    batches = [
        [new(terms=Terms(dedupe=Dedupe(key, "store"))) for key in (keys if number % 2 else keys[::-1])]
        for number in range(8)
    ]
    results = await asyncio.gather(*(stores[number % 2].put(batch) for number, batch in enumerate(batches)))
    assert sum(len(result.added) for result in results) == len(keys)
    assert sum(len(result.duplicates) for result in results) == 7 * len(keys)
    await world.sound()


async def test_race_of_a_replay_and_its_twin_has_one_winner(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        old, twin = (new(terms=Terms(dedupe=Dedupe(f"k{turn}"))) for _ in range(2))
        await world.put(old)
        await world.end(old, dead)
        amended, put = await at_once(turn, stores[0].amend(Ids((old.id,)), Replay(), act()), stores[1].put([twin]))
        assert (amended.changed == (old.id,)) != (put.added == (twin.id,))
        assert await world.drain() == (old.id if amended.changed else twin.id,)
    await world.sound()


async def test_race_of_an_end_and_its_successor_never_runs_two(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        one, two = (new(terms=Terms(dedupe=Dedupe(f"k{turn}"))) for _ in range(2))
        await world.put(one)
        item = await world.lease_one()
        settled, put = await at_once(turn, stores[0].settle([finished(item)]), stores[1].put([two]))
        assert verdicts(settled) == (Verdict.APPLIED,)
        assert len(put.added) + len(put.duplicates) == 1
        await world.drain()
    await world.sound()


# --- order ---


async def test_race_of_puts_under_one_key_keeps_the_order_of_each_caller(world: World) -> None:
    """What one caller put before, in another call or in the same, runs before."""
    stores = await handles(world)
    terms = Terms(order_key="a")
    batches = [[[new(terms=terms) for _ in range(3)] for _ in range(4)] for _ in range(6)]

    async def caller(number: int) -> None:
        for batch in batches[number]:
            await stores[number % 2].put(batch)

    await asyncio.gather(*(caller(number) for number in range(6)))
    assert (await world.count()).held == 6 * 4 * 3 - 1
    await world.sound()
    ran = await world.drain()
    assert len(ran) == 6 * 4 * 3
    for mine in batches:
        flat = [item.id for batch in mine for item in batch]
        assert [item_id for item_id in ran if item_id in flat] == flat


async def test_race_of_a_put_and_the_end_of_the_head_leaves_nobody_stuck(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        terms = Terms(order_key=f"k{turn}")
        head, late = new(terms=terms), new(terms=terms)
        await world.put(head)
        item = await world.lease_one()
        await at_once(turn, stores[0].settle([finished(item)]), stores[1].put([late]))
        assert await world.drain() == (late.id,)
    await world.sound()


@pytest.mark.parametrize("order", ["block", "park", "skip"])
async def test_race_of_a_put_and_the_death_of_the_head(world: World, order: str) -> None:
    stores = await handles(world)
    await world.set(QueueChange(order=order))  # type: ignore[arg-type]  # drawn from its words
    for turn in range(ROUNDS):
        terms = Terms(order_key=f"k{turn}")
        head, late = new(terms=terms), new(terms=terms)
        await world.put(head)
        item = await world.lease_one()
        await at_once(turn, stores[0].settle([dead(item)]), stores[1].put([late]))
        if order == "skip":
            assert (await world.item(late.id)).gap == head.id
            assert await world.drain() == (late.id,)
        else:
            assert await world.drain() == ()
            assert await world.blocked_by(late.id) == (head.id,)
    await world.sound()


async def test_race_of_operators_over_a_dead_head_lets_the_line_go_on(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        made = [new(terms=Terms(order_key=f"k{turn}")) for _ in range(3)]
        await world.put(*made)
        await world.end(made[0], dead)
        changes: tuple[Change, ...] = (Replay(), Discard(), Skip())
        await at_once(turn, *(stores[n % 2].amend(Ids((made[0].id,)), changes[n], act()) for n in range(3)))
        ran = await world.drain()
        assert tuple(item_id for item_id in ran if item_id != made[0].id) == ids(made[1:])
        await world.sound()


async def test_race_of_workers_over_keys_never_overtakes(world: World) -> None:
    """Failures, crashes and releases on all sides: of one key never two at once, and each in its turn."""
    stores = await handles(world)
    keys = [f"k{number}" for number in range(4)]
    made = [new(terms=Terms(order_key=key)) for _ in range(6) for key in keys]
    await world.put(*made)
    key_of = {item.id: item.terms.order_key for item in made if item.terms is not None}
    running: set[str] = set()
    done: dict[str, list[str]] = {key: [] for key in keys}

    async def work(number: int) -> None:
        rng, store, worker = random.Random(number), stores[number % 2], f"w-{number}"
        leases = await store.lease(asking(2, worker=worker, max_crashes=99))
        for _ in range(60):
            mine = [key_of[item.id] for item in leases.items]
            assert len(set(mine)) == len(mine)
            assert not running & set(mine), "two of one key at once"
            running.update(mine)
            await world.clock.sleep(0)
            ends = [rng.choice((finished, failed, released, after_crash))(item) for item in leases.items]
            for item, end in zip(leases.items, ends, strict=True):
                if end == finished(item):
                    done[key_of[item.id]].append(item.id)
            running.difference_update(mine)
            leases = next_leases(await store.settle(ends, asking(2, worker=worker, max_crashes=99)))
        await store.settle([released(item) for item in leases.items])

    await asyncio.gather(*(work(number) for number in range(4)))
    ran = await world.drain()
    for key in keys:
        mine = [item.id for item in made if key_of[item.id] == key]
        assert [*done[key], *(item_id for item_id in ran if key_of[item_id] == key)] == mine
    await world.sound()


# --- dependencies ---


async def test_race_of_a_put_and_the_end_of_what_it_waits_for(world: World) -> None:
    stores = await handles(world)
    for turn in range(2 * ROUNDS):
        first = new(queue=OTHER)
        last = new(terms=Terms(after=(first.id,)))
        await world.put(first)
        item = await world.lease_one(queue=OTHER)
        await at_once(turn, stores[0].settle([finished(item)]), stores[1].put([last]))
        assert await world.drain() == (last.id,)
    await world.sound()


async def test_race_of_a_put_and_the_death_of_what_it_waits_for(world: World) -> None:
    stores = await handles(world)
    for turn in range(2 * ROUNDS):
        first = new(queue=OTHER)
        last = new(terms=Terms(after=(first.id,), on_dead="die"))
        await world.put(first)
        item = await world.lease_one(queue=OTHER)
        await at_once(turn, stores[0].settle([dead(item)]), stores[1].put([last]))
        assert (await world.item(last.id)).state is State.DEAD
    await world.sound()


async def test_race_of_two_ends_of_what_one_waits_for(world: World) -> None:
    stores = await handles(world)
    for turn in range(2 * ROUNDS):
        one, two = new(queue=OTHER), new(queue=OTHER)
        last = new(terms=Terms(after=(one.id, two.id)))
        await world.put(one, two, last)
        first, second = await world.lease(2, queue=OTHER)
        await at_once(turn, stores[0].settle([finished(first)]), stores[1].settle([finished(second)]))
        assert await world.drain() == (last.id,)
    await world.sound()


async def test_race_of_ends_that_meet_in_the_same_dependents(world: World) -> None:
    """Each of many waits for some of many, ended from two sides in opposite orders."""
    stores = await handles(world)
    firsts = news(8, queue=OTHER)
    lasts = [new(terms=Terms(after=(firsts[n].id, firsts[(n + 3) % 8].id, firsts[(n + 5) % 8].id))) for n in range(8)]
    await world.put(*firsts, *lasts)
    items = await world.lease(8, queue=OTHER)
    calls = [stores[number % 2].settle([finished(item)]) for number, item in enumerate((*items[::2], *items[:0:-2]))]
    await asyncio.gather(*calls)
    assert sorted(await world.drain()) == sorted(ids(lasts))
    await world.sound()


async def test_race_of_a_cancel_and_the_end_of_what_it_waits_for(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        first = new(queue=OTHER)
        last = new(terms=Terms(after=(first.id,)))
        await world.put(first, last)
        item = await world.lease_one(queue=OTHER)
        await at_once(turn, stores[0].settle([finished(item)]), stores[1].amend(Ids((last.id,)), Cancel(), act()))
        assert (await world.item(last.id)).state is State.CANCELLED
    await world.sound()


# --- cancel and retention ---


async def test_race_of_a_cancel_and_a_lease(world: World) -> None:
    """Cancelled before it runs, or asked to stop while it does: never lost between the two."""
    stores = await handles(world)
    for turn in range(ROUNDS):
        made = new()
        await world.put(made)
        amended, leases = await at_once(
            turn, stores[0].amend(Ids((made.id,)), Cancel(), act()), stores[1].lease(asking(1, worker=fresh("w")))
        )
        assert amended.changed == (made.id,)
        for item in leases.items:
            assert (await world.item(made.id)).cancel
            assert verdicts(await world.settle(failed(item))) == (Verdict.APPLIED,)
        assert (await world.item(made.id)).state is State.CANCELLED


async def test_race_of_a_cancel_and_a_retry_never_runs_again(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        item = await world.held()
        await at_once(turn, stores[0].settle([failed(item)]), stores[1].amend(Ids((item.id,)), Cancel(), act()))
        assert (await world.item(item.id)).state is State.CANCELLED
    await world.sound()


async def test_race_of_sweeps_prunes_each_once(world: World) -> None:
    stores = await handles(world)
    await world.set(QueueChange(keep=0))
    await world.put(*news(20))
    await world.finish(*(finished(item) for item in await world.lease(20)))
    world.tick(1)
    swept = await asyncio.gather(*(stores[number % 2].sweep(100, act()) for number in range(4)))
    assert sum(one.pruned for one in swept) == 20
    assert (await world.count()).done == 0
    await world.sound()


# --- everything ---


def _anything(rng: random.Random, known: list[str]) -> NewItem:
    terms = Terms(
        order_key=rng.choice(("", "", "o1", "o2")),
        limit_key=rng.choice(("", "", "l1", "l2")),
        dedupe=Dedupe(rng.choice("xyz")) if rng.random() < 0.2 else None,
        after=tuple(rng.sample(known, min(len(known), 2))) if rng.random() < 0.3 else (),
        on_dead=rng.choice(("wait", "die")),
    )
    return new(priority=rng.choice(tuple(Priority)), terms=terms)


async def test_race_of_everything_that_binds_items_keeps_the_books_true(world: World) -> None:
    stores = await handles(world)
    await world.set(QueueChange(max_running=8, max_per_key=2, order="park"))
    known: list[str] = []

    async def live(number: int) -> None:
        rng, store = random.Random(number), stores[number % 2]
        for _ in range(10):
            with suppress(BadDependency):  # what was cancelled meanwhile
                added = await store.put([_anything(rng, known[-6:]) for _ in range(3)])
                known.extend(added.added)
            items: Sequence[Item] = (await store.lease(asking(3, worker=f"w-{number}"))).items
            await store.settle([rng.choice((finished, finished, failed, dead, released))(item) for item in items])
            change = rng.choice((Replay(), Replay(force=True), Discard(), Skip(), Cancel()))
            await store.amend(Ids(tuple(rng.sample(known, min(len(known), 3)))), change, act())

    await asyncio.gather(*(live(number) for number in range(4)))
    await world.sound()
    # Whatever is not held by something dead can be brought to an end.
    await world.drain()
    count = await world.count()
    assert (count.ready, count.leased) == (0, 0)
    await world.sound()
    assert len((await world.store.find(EVERYTHING, 1_000)).items) == len(known)


# --- unknown outcomes ---


async def test_unknown_outcome_of_a_death_that_spreads(world: World) -> None:
    await world.set(QueueChange(order="skip"))
    head, follower = new(terms=Terms(order_key="a")), new(terms=Terms(order_key="a"))
    child = new(terms=Terms(after=(head.id,), on_dead="die"))
    await world.put(head, follower, child)
    end = dead(await world.lease_one())
    await world.settle(end)
    before = [await world.store.get(item.id) for item in (head, follower, child)]
    assert verdicts(await (await world.another()).settle([end])) == (Verdict.ALREADY,)
    assert [await world.store.get(item.id) for item in (head, follower, child)] == before
    await world.sound()


async def test_unknown_outcome_of_a_skip(world: World) -> None:
    head, follower, last = (new(terms=Terms(order_key="a")) for _ in range(3))
    await world.put(head, follower, last)
    await world.end(head, dead)
    by = act()
    await world.store.amend(Ids((head.id,)), Skip(), by)
    assert (await (await world.another()).amend(Ids((head.id,)), Skip(), by)).already == (head.id,)
    assert await world.holds(follower, last) == ["", "order"]


async def test_unknown_outcome_of_a_put_of_bound_items(world: World) -> None:
    first = new()
    bound = [new(terms=Terms("o", "l", Dedupe("d"), (first.id,))), new(terms=Terms("o"))]
    await world.put(first, *bound)
    before = [await world.store.get(item.id) for item in bound]
    again = await (await world.another()).put([first, *bound])
    assert again == PutResult(already=(first.id, *ids(bound)))
    assert [await world.store.get(item.id) for item in bound] == before
    await world.sound()
