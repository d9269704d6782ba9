"""`beat`, `workers` and `elect`: who is alive, and at most one leader."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from redrive.core.verbs import WorkerBeat, WorkerFacts
from redrive.testing.conformance.kit import QUEUE, SECOND, TTL, World

DAY = 24 * 60 * 60 * SECOND
FACTS = WorkerFacts((QUEUE, "calls ☃"), "host", 4711, "1.2.3", 5, 7)


async def test_beat_shows_the_worker_with_its_facts(world: World) -> None:
    assert await world.store.workers() == ()
    await world.store.beat("w-1", FACTS, TTL)
    expected = WorkerBeat("w-1", FACTS, world.clock.now(), alive=True)
    assert await (await world.another()).workers() == (expected,)


async def test_beat_replaces_the_facts(world: World) -> None:
    await world.store.beat("w-1", FACTS, TTL)
    world.tick(SECOND)
    newer = WorkerFacts((QUEUE,), running=2)
    await world.store.beat("w-1", newer, TTL)
    assert await world.store.workers() == (WorkerBeat("w-1", newer, world.clock.now(), alive=True),)


async def test_beat_lasts_for_its_ttl(world: World) -> None:
    await world.store.beat("w-1", FACTS, TTL)
    seen = world.clock.now()
    world.tick(TTL - 1)
    assert [beat.alive for beat in await world.store.workers()] == [True]
    world.tick(2)
    assert await world.store.workers() == (WorkerBeat("w-1", FACTS, seen, alive=False),)
    await world.store.beat("w-1", FACTS, TTL)
    assert [beat.alive for beat in await world.store.workers()] == [True]


async def test_beat_of_a_worker_that_stopped_is_no_sign_of_life(world: World) -> None:
    await world.store.beat("w-1", FACTS, TTL)
    await world.store.beat("w-2", FACTS, TTL)
    farewell = replace(FACTS, stopped=True)
    await world.store.beat("w-1", farewell, TTL)
    now = world.clock.now()
    expected = (WorkerBeat("w-2", FACTS, now, alive=True), WorkerBeat("w-1", farewell, now, alive=False))
    assert await (await world.another()).workers() == expected
    await world.store.beat("w-1", FACTS, TTL)
    assert [beat.alive for beat in await world.store.workers()] == [True, True]


async def test_beat_is_forgotten_after_a_day(world: World) -> None:
    await world.store.beat("w-1", FACTS, TTL)
    world.tick(DAY - 1)
    assert len(await world.store.workers()) == 1
    world.tick(2)
    assert await world.store.workers() == ()


async def test_beat_lists_the_alive_first(world: World) -> None:
    await world.store.beat("a", FACTS, SECOND)
    await world.store.beat("b", FACTS, 10 * SECOND)
    await world.store.beat("c", FACTS, SECOND)
    world.tick(2 * SECOND)
    beats = await world.store.workers()
    assert beats[0].worker == "b"
    assert [beat.alive for beat in beats] == [True, False, False]


async def test_elect_makes_one_leader(world: World) -> None:
    other = await world.another()
    assert await world.store.elect("maintainer", "one", TTL)
    assert not await other.elect("maintainer", "two", TTL)
    assert not await world.store.elect("maintainer", "two", TTL)


async def test_elect_prolongs_for_the_leader(world: World) -> None:
    assert await world.store.elect("maintainer", "one", TTL)
    for _ in range(3):
        world.tick(TTL - 1)
        assert await world.store.elect("maintainer", "one", TTL)
        assert not await world.store.elect("maintainer", "two", TTL)


async def test_elect_changes_when_the_leader_is_silent(world: World) -> None:
    assert await world.store.elect("maintainer", "one", TTL)
    world.tick(TTL + 1)
    assert await world.store.elect("maintainer", "two", TTL)
    assert not await world.store.elect("maintainer", "one", TTL)


async def test_elect_refused_does_not_prolong(world: World) -> None:
    assert await world.store.elect("maintainer", "one", TTL)
    world.tick(TTL - 1)
    assert not await world.store.elect("maintainer", "two", 100 * TTL)
    world.tick(2)
    assert await world.store.elect("maintainer", "two", TTL)


async def test_elect_keeps_names_apart(world: World) -> None:
    assert await world.store.elect("maintainer", "one", TTL)
    assert await world.store.elect("scheduler", "two", TTL)


async def test_elect_at_once_makes_one_leader(world: World) -> None:
    other = await world.another()
    calls = [handle.elect("maintainer", f"{turn}", TTL) for turn, handle in enumerate([world.store, other] * 4)]
    assert (await asyncio.gather(*calls)).count(True) == 1
