"""`prune`: resolved items only, each with a tombstone, the act with an audit entry, all in one write."""

from __future__ import annotations

import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Discard,
)
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import (
    Settlement,
    Tombstone,
    Verdict,
)
from redrive.errors import NotFound
from redrive.testing.conformance.kit import (
    QUEUE,
    World,
    act,
    dead,
    failed,
    finished,
    ids,
    new,
    sha256,
    verdicts,
)


async def test_prune_leaves_a_tombstone(world: World) -> None:
    made = new(b"\x00 the payload")
    await world.put(made)
    await world.finish(finished(await world.lease_one()))
    world.tick(9)
    by = act("r-1", actor="ada", reason="retention of a week")
    expected = Tombstone(made.id, QUEUE, State.DONE, sha256(made.payload), world.clock.now(), "ada", by.reason)
    assert await world.store.prune(Ids((made.id,)), 10, by) == (expected,)
    assert await world.store.tombstone(made.id) == expected
    assert await (await world.another()).tombstone(made.id) == expected
    with pytest.raises(NotFound):
        await world.store.get(made.id)
    assert (await world.store.find(EVERYTHING)).items == ()
    (entry,) = await world.store.journal("audit")
    assert (entry.actor, entry.reason, entry.request_id) == (by.actor, by.reason, "r-1")
    assert made.id.encode() in entry.body


async def test_prune_takes_done_cancelled_and_trash(world: World) -> None:
    done, trash, cancelled = await world.done(), await world.letter(), new()
    await world.put(cancelled)
    await world.store.amend(Ids((cancelled.id,)), Cancel(), act())
    await world.store.amend(Ids((trash.id,)), Discard(), act())
    stones = await world.store.prune(EVERYTHING, 10, act())
    states = {stone.id: stone.state for stone in stones}
    assert states == {done.id: State.DONE, trash.id: State.DEAD, cancelled.id: State.CANCELLED}
    count = await world.count()
    assert (count.done, count.trash, count.cancelled) == (0, 0, 0)


async def test_prune_takes_nothing_else(world: World) -> None:
    """P6: an open letter is never dropped, not even when it is named; nor is anything that still waits or runs."""
    letter, archived = await world.letter(), await world.letter()
    await world.store.amend(Ids((archived.id,)), Archive(), act())
    running, ready = await world.held(), new()
    await world.put(ready)
    kept = (letter.id, archived.id, running.id, ready.id)
    before = [await world.store.get(item_id) for item_id in kept]
    entries = await world.store.journal("audit")
    for selection in (EVERYTHING, Ids(kept), Match("state", "=", "dead")):
        assert await world.store.prune(selection, 100, act()) == ()
    assert [await world.store.get(item_id) for item_id in kept] == before
    assert [await world.store.tombstone(item_id) for item_id in kept] == [None] * 4
    assert await world.store.journal("audit") == entries


async def test_prune_keeps_to_the_limit_past_what_it_may_not_take(world: World) -> None:
    """A full batch of open letters first must not keep the resolved ones behind them for ever."""
    for _ in range(5):
        await world.letter()
    done = [await world.done() for _ in range(3)]
    first = await world.store.prune(EVERYTHING, 2, act())
    second = await world.store.prune(EVERYTHING, 2, act())
    assert (len(first), len(second)) == (2, 1)
    assert sorted(ids(first + second)) == sorted(ids(done))
    assert (await world.count()).open == 5


async def test_prune_of_nothing(world: World) -> None:
    await world.done()
    assert await world.store.prune(EVERYTHING, 0, act()) == ()
    assert await world.store.prune(Ids(("nobody",)), 10, act()) == ()
    assert await world.store.tombstone("nobody") is None
    assert (await world.count()).done == 1


async def test_prune_repeated_takes_each_once(world: World) -> None:
    """The reply was lost: the repeat finds nothing left to take, and the tombstone is the first one."""
    done = await world.done()
    by = act()
    (stone,) = await world.store.prune(Ids((done.id,)), 10, by)
    world.tick(5)
    await world.store.prune(Ids((done.id,)), 10, by)
    assert await world.store.tombstone(done.id) == stone
    assert len(await world.store.journal("audit")) == 1
    assert (await world.count()).done == 0


async def test_prune_is_for_good(world: World) -> None:
    """Ids are unique for ever: the late repeat of an old put must not run the work a second time."""
    done = await world.done()
    await world.store.prune(Ids((done.id,)), 10, act())
    assert (await world.store.put([new(item_id=done.id)])).already == (done.id,)
    assert await world.lease(5) == ()
    item = await world.held()
    await world.finish(finished(item, follow_ups=[new(item_id=done.id)]))
    assert await world.lease(5) == ()
    assert await world.store.tombstone(done.id) is not None


async def test_prune_forgets_the_history(world: World) -> None:
    item = await world.held()
    await world.finish(failed(item))
    item = await world.lease_one()
    await world.finish(finished(item))
    await world.store.prune(Ids((item.id,)), 10, act())
    assert await world.history(item.id) is None
    assert (await world.store.amend(Ids((item.id,)), Archive(), act())).changed == ()


async def test_prune_leaves_late_settles_refused(world: World) -> None:
    item = await world.held()
    await world.finish(finished(item))
    await world.store.prune(Ids((item.id,)), 10, act())
    settled = await world.settle(dead(item), Settlement(item.id, 2, finished(item).decision))
    assert verdicts(settled) == (Verdict.REFUSED, Verdict.REFUSED)
    assert await world.history(item.id) is None
