"""`open`, `close` and `info`: a handle says what it is, may be closed twice, and refuses when it is closed."""

from __future__ import annotations

import pytest

from redrive.core.select import EVERYTHING
from redrive.core.verbs import QueueChange, WorkerFacts
from redrive.errors import StoreUnavailable
from redrive.testing.conformance.kit import DURABLE, HANDLES, QUEUE, TTL, World, act, asking, ids, new


async def test_info_names_the_engine_and_its_promise(world: World) -> None:
    info = world.store.info()
    assert info.engine
    assert info.location
    assert info.library
    assert info.schema >= 1
    assert info.durability in {"power-loss", "process-crash", "none"}
    assert (info.durability != "none") == (DURABLE in world.capabilities)


async def test_close_may_be_called_twice(world: World) -> None:
    handle = await world.another()
    await handle.close()
    await handle.close()


async def test_close_refuses_what_comes_after(world: World) -> None:
    """P8: a store that is not there refuses loudly; nothing is accepted that nobody keeps."""
    await world.store.close()
    calls = [
        world.store.put([new()]),
        world.store.lease(asking()),
        world.store.settle([]),
        world.store.reclaim("reaper", [QUEUE], TTL, 1),
        world.store.find(EVERYTHING),
        world.store.tally(),
        world.store.prune(EVERYTHING, 1, act()),
        world.store.configure(QUEUE, QueueChange()),
        world.store.beat("w", WorkerFacts(()), TTL),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call


async def test_close_of_one_handle_leaves_the_others(world: World) -> None:
    world.needs(HANDLES)
    other = await world.another()
    made = new()
    await other.put([made])
    await other.close()
    assert ids(await world.lease(1)) == (made.id,)


async def test_close_keeps_what_was_accepted(world: World) -> None:
    world.needs(DURABLE)
    made = [new() for _ in range(20)]
    for item in made:
        await world.store.put([item])
    held = await world.lease(3)
    await world.store.close()
    reopened = await world.another()
    page = await reopened.find(EVERYTHING, 100)
    assert sorted(ids(page.items)) == sorted(ids(made))
    assert [(await reopened.get(item.id)).item for item in held] == list(held)
