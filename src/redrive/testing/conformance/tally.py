"""`tally` and `causes`: kept counters that equal a full count after anything that can happen."""

from __future__ import annotations

import random

from redrive.core.acts import (
    Archive,
    Cancel,
    Change,
    Discard,
    Replay,
    Restore,
)
from redrive.core.item import Item
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import QueueChange, QueueTally
from redrive.stores.base import PAGE_LIMIT
from redrive.testing.conformance.kit import (
    QUEUE,
    SECOND,
    TTL,
    World,
    act,
    after_crash,
    asking,
    counted,
    dead,
    failed,
    failure,
    finished,
    fresh,
    new,
    news,
    released,
)


async def test_tally_of_an_empty_store(world: World) -> None:
    tally = await world.store.tally()
    assert (tally.at, tally.queues) == (world.clock.now(), ())


async def test_tally_follows_an_item_through_its_life(world: World) -> None:
    made = new()
    await world.put(made)
    due = world.clock.now()
    assert await world.count() == QueueTally(QUEUE, ready=1, oldest_due=due)
    item = await world.lease_one()
    assert await world.count() == QueueTally(QUEUE, leased=1)
    await world.finish(failed(item, delay=SECOND))
    assert await world.count() == QueueTally(QUEUE, ready=1, oldest_due=due + SECOND)
    world.tick(SECOND)
    await world.finish(dead(await world.lease_one()))
    assert await world.count() == QueueTally(QUEUE, open=1)
    steps: list[tuple[Change, QueueTally]] = [
        (Archive(), QueueTally(QUEUE, archived=1)),
        (Discard(), QueueTally(QUEUE, trash=1)),
        (Restore(), QueueTally(QUEUE, open=1)),
        (Replay(), QueueTally(QUEUE, ready=1, oldest_due=due + SECOND)),
    ]
    for change, expected in steps:
        await world.store.amend(Ids((item.id,)), change, act())
        assert await world.count() == expected
    await world.finish(finished(await world.lease_one()))
    assert await world.count() == QueueTally(QUEUE, done=1)
    await world.store.prune(EVERYTHING, 10, act())
    assert await world.count() == QueueTally(QUEUE)


async def test_tally_counts_the_cancelled(world: World) -> None:
    made = new()
    await world.put(made)
    await world.store.amend(Ids((made.id,)), Cancel(), act())
    assert await world.count() == QueueTally(QUEUE, cancelled=1)


async def test_tally_shows_the_earliest_due_among_the_ready(world: World) -> None:
    late, early = new(delay=9 * SECOND), new(delay=3 * SECOND)
    await world.put(late, early)
    start = world.clock.now()
    assert (await world.count()).oldest_due == start + 3 * SECOND
    world.tick(4 * SECOND)
    await world.lease_one()
    assert (await world.count()).oldest_due == start + 9 * SECOND


async def test_tally_is_ordered_by_queue_name(world: World) -> None:
    names = ["b", "a", "c", "B", "a b", "á"]
    await world.put(*(new(queue=name) for name in names))
    await world.store.configure("aa", QueueChange())
    shown = [row.queue for row in (await world.store.tally()).queues]
    assert shown == sorted([*names, "aa"])


async def test_tally_keeps_queues_apart(world: World) -> None:
    await world.put(new(queue="a"), new(queue="b"), new(queue="b"))
    await world.finish(finished(await world.lease_one(queue="b")))
    assert ((await world.count("a")).ready, (await world.count("b")).ready) == (1, 1)
    assert ((await world.count("a")).done, (await world.count("b")).done) == (0, 1)


async def test_tally_does_not_move_for_the_refused(world: World) -> None:
    item = await world.held()
    await world.finish(finished(item))
    before = (await world.store.tally()).queues
    await world.settle(finished(item), dead(item))
    await world.store.put([new(item_id=item.id)])
    await world.store.amend(Ids((item.id,)), Replay(), act())
    await world.store.extend([], TTL)
    assert (await world.store.tally()).queues == before


async def test_tally_equals_a_full_count_after_anything(world: World) -> None:
    """Two hundred steps of every verb, good and stale ones mixed; the kept counters never drift."""
    rng = random.Random(11)
    seen: list[Item] = []
    for step in range(200):
        seen = await _step(world, rng, seen)
        if step % 10 == 9:
            await _assert_true(world)
    await _assert_true(world)


async def _assert_true(world: World) -> None:
    everything = (await world.store.find(EVERYTHING, PAGE_LIMIT)).items
    for row in (await world.store.tally()).queues:
        assert row == counted(everything, row.queue)


async def _step(world: World, rng: random.Random, seen: list[Item]) -> list[Item]:
    """One random verb. `seen` are leases of before: most are stale, and settling them must change nothing."""
    queue = rng.choice(["a", "b"])
    match rng.choice(["put", "put", "lease", "lease", "settle", "settle", "amend", "reclaim", "prune", "tick"]):
        case "put":
            again = [new(item_id=item.id) for item in seen[-1:]]
            await world.store.put([*news(rng.randint(1, 3), queue), *again])
        case "lease":
            request = asking(rng.randint(1, 4), queue=queue, worker=fresh("w"), holding=rng.randint(0, 1))
            seen = [*seen, *(await world.store.lease(request)).items]
        case "settle":
            makers = (finished, failed, released, after_crash, dead)
            await world.settle(*(rng.choice(makers)(item) for item in rng.sample(seen, min(3, len(seen)))))
        case "amend":
            change: Change = rng.choice((Replay(), Archive(), Discard(), Restore(), Cancel()))
            await world.store.amend(Ids(tuple(item.id for item in seen[-4:])), change, act())
        case "reclaim":
            taken = await world.store.reclaim("reaper", [queue], TTL, 3, force=rng.random() < 0.3)
            seen = [*seen, *taken]
        case "prune":
            await world.store.prune(EVERYTHING, 1, act())
        case _:
            world.tick(rng.choice([1, SECOND, TTL + 1]))
    return seen[-12:]


async def test_causes_of_an_empty_store(world: World) -> None:
    assert await world.store.causes() == ()


async def test_causes_count_open_letters(world: World) -> None:
    first = await world.letter("c1")
    world.tick(SECOND)
    last = await world.letter("c1")
    await world.letter("c2")
    await world.letter("c1", queue="other")
    assert first.letter is not None
    assert last.letter is not None
    found = await world.store.causes()
    assert {(row.cause, row.queue, row.count) for row in found} == {
        ("c1", QUEUE, 2),
        ("c2", QUEUE, 1),
        ("c1", "other", 1),
    }
    top = found[0]
    assert (top.cause, top.queue, top.count) == ("c1", QUEUE, 2)
    assert (top.error, top.text) == (first.letter.failure.type, first.letter.failure.text)
    assert (top.first_at, top.last_at) == (first.letter.died_at, last.letter.died_at)


async def test_causes_come_most_first_and_limited(world: World) -> None:
    for cause, times in (("one", 1), ("three", 3), ("two", 2)):
        for _ in range(times):
            await world.letter(cause)
    assert [row.cause for row in await world.store.causes()] == ["three", "two", "one"]
    assert [row.cause for row in await world.store.causes(limit=2)] == ["three", "two"]


async def test_causes_of_one_queue(world: World) -> None:
    await world.letter("c1", queue="a")
    await world.letter("c1", queue="b")
    assert [(row.cause, row.queue, row.count) for row in await world.store.causes("a")] == [("c1", "a", 1)]
    assert await world.store.causes("never heard of") == ()


async def test_causes_lose_what_is_no_longer_open(world: World) -> None:
    one, two, three = await world.letter(), await world.letter(), await world.letter()
    counts = []
    for letter, change in ((one, Archive()), (two, Discard()), (three, Replay()), (one, Restore())):
        await world.store.amend(Ids((letter.id,)), change, act())
        counts.append([row.count for row in await world.store.causes()])
    assert counts == [[2], [1], [], [1]]


async def test_causes_keep_an_example_text_whole(world: World) -> None:
    made = new()
    await world.put(made)
    why = failure(cause="c1", error="smtp.Böse", text="x" * 3_000 + " ☃ \n\t'")
    await world.finish(dead(await world.lease_one(), why=why))
    (row,) = await world.store.causes()
    assert (row.error, row.text) == (why.type, why.text)
