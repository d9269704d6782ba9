"""What a million of something costs: each figure stands beside the same figure at a thousand, taken in one breath."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from bench.harness import CannotMeasure
from bench.lab import MANY, Lab, Reading
from bench.load import PAYLOAD, QUEUE
from bench.seeds import story
from redrive.core import codec
from redrive.core.decide import Charge, ToDead, ToDone
from redrive.core.item import Attempt, Ending, Item, NewItem
from redrive.core.verbs import LeaseRequest, Settlement, Verdict, Want
from redrive.engine.ids import new_id, new_ids
from redrive.stores.url import store_from_url

FEW = 1_000
BATCH = 100
ROUNDS = 5
TURNS = 20
"""Turns of a round: in each, every side does its batches, so that what the disk does meets all of them."""
BATCHES = 5
TTL = 600_000
MOST = 1.3
BACKLOGS = (10_000, 500_000)


@dataclass
class Costs:
    """Microseconds per item, one figure a round."""

    done: list[float] = field(default_factory=list)
    dead: list[float] = field(default_factory=list)
    put: list[float] = field(default_factory=list)


class Side:
    """A store with work waiting, used as a worker uses it: each write settles a batch and leases the next."""

    def __init__(self, name: str, url: str, queues: Sequence[str] = (QUEUE,), fill: int = BATCH) -> None:
        self.name = name
        self._fill = fill
        self.costs = Costs()
        self._store = store_from_url(url)
        self._queues = queues
        self._held: tuple[Item, ...] = ()

    async def __aenter__(self) -> Self:
        await self._store.open()
        await self.put(self._fill)
        self._held = (await self._store.lease(self._request())).items
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()

    async def finish(self) -> float:
        return await self._settle([Settlement(item.id, item.deliveries, ToDone()) for item in self._held])

    async def bury(self) -> float:
        _, failure = story.failures()[3]
        return await self._settle(
            [
                Settlement(
                    item.id,
                    item.deliveries,
                    ToDead(story.REASON, Charge.ERROR, failure),
                    Attempt(
                        item.deliveries, item.attempt, story.WORKER, item.leased_at or 0, 5, Ending.FAILED, failure
                    ),
                )
                for item in self._held
            ]
        )

    async def put(self, count: int) -> float:
        body = codec.encode(PAYLOAD)
        items = [NewItem(item_id, QUEUE, body) for item_id in new_ids(count)]
        start = time.perf_counter()
        await self._store.put(items)
        return time.perf_counter() - start

    async def rest(self) -> None:
        """Until the writer has done what it does after its answers: the checkpoint of a put is no lease's bill."""
        await self._store.extend((), TTL)

    async def _settle(self, settlements: Sequence[Settlement]) -> float:
        request = self._request()
        start = time.perf_counter()
        settled = await self._store.settle(settlements, request)
        took = time.perf_counter() - start
        applied = sum(answer.verdict is Verdict.APPLIED for answer in settled.answers)
        self._held = settled.leases.items if settled.leases is not None else ()
        if applied != BATCH or len(self._held) != BATCH:
            raise CannotMeasure(f"{self.name}: {applied} settled and {len(self._held)} leased, not {BATCH} each")
        return took

    def _request(self) -> LeaseRequest:
        wants = tuple(Want(queue, BATCH, TTL, 3) for queue in self._queues)
        return LeaseRequest("bench", wants, new_id())


async def breathe(sides: Sequence[Side], *, letters: int = 0) -> None:
    """All rounds. Every side keeps its number of waiting items: what a turn takes is put again. `letters`: a round."""
    async with AsyncExitStack() as stack:
        for side in sides:
            await stack.enter_async_context(side)
        for _ in range(ROUNDS):
            spent = {side.name: [0.0, 0.0, 0.0] for side in sides}
            for turn in range(TURNS):
                first = turn % len(sides)
                for side in (*sides[first:], *sides[:first]):
                    await _turn(side, spent[side.name], dies=turn < letters // BATCH)
            for side in sides:
                done, dead, put = spent[side.name]
                side.costs.done.append(done / (TURNS * BATCHES * BATCH) * 1e6)
                side.costs.put.append(put / (TURNS * BATCHES * BATCH) * 1e6)
                if letters:
                    side.costs.dead.append(dead / letters * 1e6)


async def _turn(side: Side, spent: list[float], *, dies: bool) -> None:
    for _ in range(BATCHES):
        spent[0] += await side.finish()
    if dies:
        spent[1] += await side.bury()
        await side.put(BATCH)
    for _ in range(BATCHES):
        spent[2] += await side.put(BATCH)
    await side.rest()


def waiting(lab: Lab) -> list[Reading]:
    """Ready items; and R22: nine of ten are delayed or lie in a paused queue that the worker asks as well."""
    engine = lab.engine
    part = lab.many * 45 // 100
    few = Side("few", engine.waiting("few", FEW))
    many = Side("many", engine.waiting("many", lab.many))
    mixed = engine.waiting("mixed", lab.many - 2 * part, delayed=part, paused=part)
    blind = Side("blind", mixed, (story.PAUSED, QUEUE))
    asyncio.run(breathe([few, many, blind]))
    for store in ("few", "many", "mixed"):
        engine.drop(store)
    what = f"lease + settle of {BATCH}, {lab.many:,} waiting"
    return [
        *compare(what, many, few, lambda costs: costs.done, MOST),
        *compare(f"{what}, 90% delayed or paused", blind, few, lambda costs: costs.done, MOST),
        *compare(f"put of {BATCH}, {lab.many:,} waiting", many, few, lambda costs: costs.put),
    ]


def letters(lab: Lab) -> list[Reading]:
    few = Side("few", lab.engine.letters("few", FEW), fill=FEW + BATCH)
    many = Side("many", lab.lettered(lab.many), fill=FEW + BATCH)
    asyncio.run(breathe([few, many], letters=2 * BATCH))
    lab.engine.drop("few")
    what = f"{lab.many:,} letters"
    return [
        *compare(f"lease + settle of {BATCH}, {what}", many, few, lambda costs: costs.done, MOST),
        *compare(f"settle of {BATCH} as dead, {what}", many, few, lambda costs: costs.dead),
        *compare(f"put of {BATCH}, {what}", many, few, lambda costs: costs.put),
    ]


def compare(
    line: str,
    many: Side,
    few: Side,
    cost: Callable[[Costs], list[float]],
    at_most: float | None = None,
    *,
    against: str = f"{FEW:,}",
) -> list[Reading]:
    """A reading a round, so that the median is one of rounds."""
    pairs = zip(cost(many.costs), cost(few.costs), strict=True)
    return [Reading(line, ours, "µs an item", against, base, at_most=at_most) for ours, base in pairs]


def memory(lab: Lab) -> list[Reading]:
    """Of a worker process that drains its queue."""
    few, many = (backlog * lab.many // MANY for backlog in BACKLOGS)
    base = float(lab.work(lab.engine.waiting("backlog", few))["peak_mb"])
    peak = float(lab.work(lab.engine.waiting("backlog", many))["peak_mb"])
    lab.engine.drop("backlog")
    return [Reading(f"memory of a drain of {many:,}", peak, "MB", f"a drain of {few:,}", base, at_most=MOST)]
