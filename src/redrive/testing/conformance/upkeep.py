"""`check` and `backup`: a store that was only used by its verbs is sound, and a copy is whole or not there."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from redrive.core.acts import (
    Archive,
    Cancel,
    Change,
    Discard,
    Replay,
)
from redrive.core.select import EVERYTHING, Ids
from redrive.core.verbs import Checkup
from redrive.errors import ConfigError, Conflict, StoreUnavailable
from redrive.stores.base import PAGE_LIMIT
from redrive.testing.conformance.kit import (
    SECOND,
    World,
    act,
    dead,
    failed,
    finished,
    new,
    news,
)


async def _live(world: World) -> int:
    """Something in every state there is; how many items are left."""
    await world.put(*news(3), new(delay=SECOND))
    await world.put(*news(2, queue="other"))
    await world.held()
    await world.finish(finished(await world.lease_one(), result=b'"ok"', follow_ups=news(2, queue="third")))
    await world.finish(failed(await world.lease_one(), delay=SECOND))
    letters = [await world.letter(cause) for cause in ("c1", "c1", "c2", "c3", "c4")]
    changes: tuple[Change, ...] = (Archive(), Discard(), Replay(), Discard())
    for letter, change in zip(letters[1:], changes, strict=True):
        await world.store.amend(Ids((letter.id,)), change, act())
    await world.store.prune(Ids((letters[4].id,)), 1, act())
    unwanted = new()
    await world.put(unwanted)
    await world.store.amend(Ids((unwanted.id,)), Cancel(), act())
    await world.suspect()
    return len((await world.store.find(EVERYTHING, PAGE_LIMIT)).items)


async def test_check_of_an_empty_store(world: World) -> None:
    assert await world.store.check() == Checkup()


@pytest.mark.parametrize("quick", [False, True])
async def test_check_finds_nothing_in_what_the_verbs_made(world: World, quick: bool) -> None:  # noqa: FBT001 - pytest's call
    items = await _live(world)
    assert await world.store.check(quick=quick) == Checkup(items)


async def test_check_changes_nothing(world: World) -> None:
    await _live(world)
    everything = (await world.store.find(EVERYTHING, PAGE_LIMIT)).items
    tally = await world.store.tally()
    await world.store.check()
    assert (await world.store.find(EVERYTHING, PAGE_LIMIT)).items == everything
    assert await world.store.tally() == tally


async def test_check_beside_work_finds_nothing(world: World) -> None:
    """What is counted and what it is counted from must be of the same state, however much is written meanwhile."""

    async def work() -> None:
        for _ in range(20):
            await world.store.put(news(3))
            await world.finish(finished(await world.lease_one()), dead(await world.lease_one()))

    working = asyncio.ensure_future(work())
    found = [await world.store.check(quick=number % 2 == 0) for number in range(6)]
    await working
    assert [checkup.findings for checkup in found] == [()] * len(found)


async def test_backup_is_made_or_refused(world: World) -> None:
    """A store that has nothing to copy says so; one that has does not write over what is there."""
    await _live(world)
    folder = await asyncio.to_thread(tempfile.mkdtemp)
    try:
        await _copied_or_refused(world, folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)


async def _copied_or_refused(world: World, folder: str) -> None:
    target = f"{folder}/copy"
    try:
        made = await world.store.backup(target)
    except ConfigError:
        assert await asyncio.to_thread(_sizes, folder) == {}
        return
    assert made.path == target
    assert await asyncio.to_thread(_sizes, folder) == {"copy": made.size}
    with pytest.raises(Conflict):
        await world.store.backup(target)
    again = await world.store.backup(target, force=True)
    assert await asyncio.to_thread(_sizes, folder) == {"copy": again.size}


def _sizes(folder: str) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in Path(folder).iterdir()}


async def test_upkeep_after_close_is_refused(world: World) -> None:
    await world.store.close()
    with pytest.raises(StoreUnavailable):
        await world.store.check()
    with pytest.raises(StoreUnavailable):
        await world.store.backup("never")
