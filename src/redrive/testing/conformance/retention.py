"""`sweep`: finished items and results go when their queue's time for them is over, in bites; of letters see `trash`."""

from __future__ import annotations

import pytest

from redrive.core import codec
from redrive.core.acts import Cancel, Discard
from redrive.core.item import Terms
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.core.verbs import (
    TRASH_KEPT,
    QueueChange,
    Swept,
)
from redrive.stores.audit import AuditRecord
from redrive.testing.conformance.kit import QUEUE, SECOND, World, act, finished, ids, new, news, refusal

KEEP = QueueChange(keep=60 * SECOND)


async def done(world: World, count: int, result: bytes | None = None, queue: str = QUEUE) -> tuple[str, ...]:
    await world.put(*news(count, queue=queue))
    items = await world.lease(count, queue=queue)
    await world.finish(*(finished(item, result) for item in items))
    return ids(items)


async def swept(world: World, limit: int = 100) -> Swept:
    """From the beginning to the end, in bites of `limit`; added up."""
    pruned = results = bites = 0
    cursor: int | None = 0
    while cursor is not None:
        swept = await world.store.sweep(limit, act(actor="retention"), cursor)
        pruned, results, cursor, bites = pruned + swept.pruned, results + swept.results, swept.next, bites + 1
        assert bites < 1_000, "it never ends"
    return Swept(pruned, results)


async def left(world: World) -> set[str]:
    return set(ids((await world.store.find(EVERYTHING, 1_000)).items))


async def test_sweep_of_queues_that_keep_everything_is_nothing(world: World) -> None:
    kept = await done(world, 3)
    world.tick(10**9)
    assert await world.store.sweep(1, act()) == Swept()
    assert await left(world) == set(kept)


async def test_sweep_of_an_empty_store(world: World) -> None:
    assert await world.store.sweep(10, act()) == Swept()
    await world.set(KEEP)
    assert await world.store.sweep(10, act()) == Swept()


async def test_sweep_prunes_what_ended_long_ago(world: World) -> None:
    """To the millisecond, and with a tombstone and an audit entry as any prune."""
    await world.set(KEEP)
    old = await done(world, 2)
    world.tick(SECOND)
    young = await done(world, 1)
    world.tick(59 * SECOND - 1)
    assert await swept(world) == Swept()
    world.tick(1)
    by = act(actor="retention", reason="keep 1m")
    assert await world.store.sweep(100, by) == Swept(2)
    assert await left(world) == set(young)
    stone = await world.store.tombstone(old[0])
    assert stone is not None
    assert (stone.state, stone.actor, stone.reason, stone.at) == (
        State.DONE,
        "retention",
        "keep 1m",
        world.clock.now(),
    )
    (entry,) = await world.store.journal("audit")
    assert (entry.actor, entry.request_id) == ("retention", by.request_id)
    assert codec.decode(entry.body, AuditRecord) == AuditRecord("prune", Ids(old), old)
    assert (await world.store.put([new(item_id=old[0])])).already == (old[0],)
    assert (await world.count()).done == 1
    await world.sound()


async def test_sweep_prunes_what_was_cancelled(world: World) -> None:
    await world.set(KEEP)
    made = new()
    await world.put(made)
    await world.store.amend(Ids((made.id,)), Cancel(), act())
    world.tick(60 * SECOND)
    assert await swept(world) == Swept(1)


async def test_sweep_never_touches_letters_nor_what_lives(world: World) -> None:
    """Not even those in the trash, before their own time is over."""
    await world.set(QueueChange(keep=0, keep_results=0))
    letters = await world.letters(3)
    await world.store.amend(Ids((letters[0].id,)), Discard(), act())
    running, ready = await world.held(), new()
    await world.put(ready)
    world.tick(TRASH_KEPT - 1)
    assert await swept(world) == Swept()
    assert await left(world) == {*ids(letters), running.id, ready.id}


async def test_sweep_keeps_by_queue(world: World) -> None:
    await world.set(KEEP)
    await world.set(QueueChange(keep=3_600 * SECOND), "other")
    mine, others, free = await done(world, 2), await done(world, 2, queue="other"), await done(world, 2, queue="third")
    world.tick(60 * SECOND)
    assert await swept(world) == Swept(len(mine))
    assert await left(world) == {*others, *free}


@pytest.mark.parametrize("limit", [1, 3])
async def test_sweep_goes_in_bites(world: World, limit: int) -> None:
    """No bite looks at more than its limit, whatever of it is to go, and all of them together see everything."""
    await world.set(KEEP)
    gone = 0
    for turn in range(4):
        await done(world, 3)
        gone += 3
        await world.put(*news(turn % 2, queue="other"))
        await world.letter(queue="other")
    world.tick(60 * SECOND)
    first = await world.store.sweep(limit, act())
    assert first.pruned <= limit
    assert first.next is not None
    assert first.pruned + (await swept(world, limit)).pruned == gone
    assert (await world.count()).done == 0
    await world.sound()


async def test_sweep_drops_results_before_their_items(world: World) -> None:
    await world.set(QueueChange(keep=60 * SECOND, keep_results=10 * SECOND))
    (with_result,) = await done(world, 1, b'"big"')
    (without,) = await done(world, 1)
    world.tick(10 * SECOND - 1)
    assert await swept(world) == Swept()
    assert (await world.item(with_result)).result == b'"big"'
    world.tick(1)
    assert await swept(world) == Swept(0, 1)
    after = await world.item(with_result)
    assert (after.result, after.state) == (None, State.DONE)
    assert await swept(world) == Swept()
    assert await world.store.journal("audit") == ()
    world.tick(50 * SECOND)
    assert await swept(world) == Swept(2)
    assert await world.history(without) is None


async def test_sweep_drops_results_of_queues_that_keep_items(world: World) -> None:
    await world.set(QueueChange(keep_results=0))
    (item_id,) = await done(world, 1, b"")
    assert await swept(world) == Swept(0, 1)
    assert (await world.item(item_id)).result is None


async def test_sweep_frees_nobody_who_waits(world: World) -> None:
    """For one that was cancelled and is pruned since, it waits on and says for whom."""
    await world.set(KEEP)
    one = new()
    last = new(terms=Terms(after=(one.id,)))
    await world.put(one, last)
    await world.store.amend(Ids((one.id,)), Cancel(), act())
    world.tick(60 * SECOND)
    assert await swept(world) == Swept(1)
    assert await world.holds(last) == ["after"]
    assert await world.blocked_by(last.id) == (one.id,)
    await world.sound()


async def test_sweep_from_a_cursor_that_is_past_everything(world: World) -> None:
    await world.set(KEEP)
    await done(world, 2)
    assert await world.store.sweep(10, act(), 10**12) == Swept()


async def test_sweep_of_a_limit_that_makes_no_sense_is_refused(world: World) -> None:
    for limit in (0, -1, 1_001):
        assert (await refusal(world.store.sweep(limit, act()), limit)).field == "limit"
