"""Races under limits: many workers at once, and never one more than the least of them gives."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from redrive.core.decide import Charge, ToDead
from redrive.core.item import Terms
from redrive.core.meters import Rate
from redrive.core.verbs import (
    Gate,
    GateWrite,
    QueueChange,
    Settlement,
    Verdict,
)
from redrive.errors import Conflict, QueueFull
from redrive.stores.base import Store
from redrive.testing.conformance.kit import (
    QUEUE,
    TTL,
    World,
    asking,
    failure,
    finished,
    fresh,
    ids,
    new,
    news,
    released,
    verdicts,
)
from redrive.testing.conformance.terms_races import ROUNDS, at_once, handles


async def hammer(
    world: World, stores: Sequence[Store], most: int, key_of: dict[str, str], *, rounds: int = 15
) -> Counter[str]:
    """Many workers lease and settle all the time; of one key (or all) never more than `most` run. What was done."""
    running: Counter[str] = Counter()
    done: Counter[str] = Counter()

    async def work(number: int) -> None:
        rng, store, worker = random.Random(number), stores[number % 2], f"w-{number}"
        for _ in range(rounds):
            items = (await store.lease(asking(3, worker=worker))).items
            running.update(key_of[item.id] for item in items)
            assert max(running.values(), default=0) <= most, "more than the limit"
            await world.clock.sleep(0)
            ends = [finished(item) if rng.random() < 0.7 else released(item) for item in items]
            running.subtract(key_of[item.id] for item in items)
            await store.settle(ends)
            done.update(item.id for item, end in zip(items, ends, strict=True) if end == finished(item))

    await asyncio.gather(*(work(number) for number in range(6)))
    done.update(await world.drain())
    return done


async def test_race_of_workers_never_passes_max_running(world: World) -> None:
    stores = await handles(world)
    await world.set(QueueChange(max_running=4))
    made = news(60)
    await world.put(*made)
    assert await hammer(world, stores, 4, dict.fromkeys(ids(made), "")) == Counter(ids(made))
    await world.sound()


async def test_race_of_workers_never_passes_max_per_key(world: World) -> None:
    stores = await handles(world)
    await world.set(QueueChange(max_per_key=2))
    made = [new(terms=Terms(limit_key=f"k{number % 3}")) for number in range(60)]
    await world.put(*made)
    key_of = {item.id: item.terms.limit_key for item in made if item.terms is not None}
    assert await hammer(world, stores, 2, key_of) == Counter(ids(made))
    assert (await world.count()).held == 0
    await world.sound()


async def test_race_of_one_wave_of_leases_is_exact(world: World) -> None:
    """Limits at once: what the least of them gives, to the item."""
    stores = await handles(world)
    await world.put(*news(40))
    for change, most in ((QueueChange(max_running=5), 5), (QueueChange(max_running=None, rate=Rate(1, 60_000, 7)), 7)):
        await world.set(change)
        waves = await asyncio.gather(*(stores[number % 2].lease(asking(3, worker=fresh("w"))) for number in range(10)))
        items = [item for wave in waves for item in wave.items]
        assert len(items) == most
        await world.finish(*(released(item) for item in items))


async def test_race_of_leases_behind_one_gate_is_exact(world: World) -> None:
    stores = await handles(world)
    queues = [f"q{number}" for number in range(4)]
    for queue in queues:
        await world.set(QueueChange(gate="g"), queue)
    await world.put(*(item for queue in queues for item in news(5, queue=queue)))
    await world.store.set_gate(GateWrite("g", 0, 60_000_000, 6))
    waves = await asyncio.gather(
        *(stores[number % 2].lease(asking(3, queue=queue, worker=fresh("w"))) for number, queue in enumerate(queues))
    )
    assert sum(len(wave.items) for wave in waves) == 6


async def test_race_of_puts_into_a_full_queue_is_exact(world: World) -> None:
    stores = await handles(world)
    await world.set(QueueChange(capacity=10))

    async def put(number: int) -> int:
        try:
            return len((await stores[number % 2].put(news(2))).added)
        except QueueFull:
            return 0

    assert sum(await asyncio.gather(*(put(number) for number in range(16)))) == 10
    assert (await world.count()).ready == 10


async def test_race_of_deaths_on_one_route_is_exact(world: World) -> None:
    stores = await handles(world)
    await world.store.configure_route("r", 3)
    await world.put(*news(12))
    items = await world.lease(12)
    deaths = [Settlement(item.id, 1, ToDead("rule", Charge.ERROR, failure(), "r")) for item in items]
    settled = await asyncio.gather(*(stores[number % 2].settle([end]) for number, end in enumerate(deaths)))
    assert Counter(verdicts(one)[0] for one in settled) == {Verdict.APPLIED: 3, Verdict.KEPT: 9}
    count = await world.count()
    assert (count.open, count.ready) == (3, 9)
    await world.sound()


async def test_race_of_a_lifted_limit_leaves_nobody_aside(world: World) -> None:
    stores = await handles(world)
    for turn in range(ROUNDS):
        await world.set(QueueChange(max_per_key=1))
        made = [new(terms=Terms(limit_key="k")) for _ in range(4)]
        await world.put(*made)
        (item,) = await world.lease(10)
        await at_once(
            turn,
            stores[0].settle([finished(item)]),
            stores[1].configure(QUEUE, QueueChange(max_per_key=None)),
            stores[0].lease(asking(1, worker="w-2")),
        )
        world.tick(TTL + 1)
        for lost in await world.store.reclaim("reaper", [QUEUE], TTL, 10):
            await world.finish(released(lost))
        await world.drain()
        assert (await world.count()).held == 0
    await world.sound()


async def test_race_of_writers_of_a_gate_has_one_winner(world: World) -> None:
    stores = await handles(world)

    async def write(number: int, expect: int) -> Gate | None:
        try:
            return await stores[number % 2].set_gate(GateWrite("g", expect, body=str(number).encode()))
        except Conflict:
            return None

    for expect in range(4):
        written = await asyncio.gather(*(write(number, expect) for number in range(8)))
        (winner,) = [gate for gate in written if gate is not None]
        assert winner.version == expect + 1
        assert await world.store.gate("g") == winner
