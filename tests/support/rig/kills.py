"""R4: random worker kills under load, then a drain, then the verdict."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from redrive import Redrive
from redrive.core.item import Ending
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.support.rig.fleet import Fleet
from tests.support.rig.handlers import MIX
from tests.support.rig.log import Log, now_ns, read_all
from tests.support.rig.nemesis import Nemesis
from tests.support.rig.patience import eventually
from tests.support.rig.producer import Producer
from tests.support.rig.size import Kills
from tests.support.rig.survey import Survey, survey
from tests.support.rig.verdict import Verdict, judge

MORE = 10
"""Items for each queue when all is done before the last kill."""


@dataclass(frozen=True)
class Report:
    verdict: Verdict
    survey: Survey
    drain: float  # seconds from the last kill until nothing was left
    rest: float  # seconds that what was left takes at the pace at which the others had ended until then
    open_runs: int  # handlers that ran when their worker was killed
    crashed: int  # deliveries that the store has on record as crashed

    def ends(self) -> dict[str, set[str]]:
        """The states in which the items of each queue ended."""
        ends: dict[str, set[str]] = {}
        for final in self.survey.finals.values():
            ends.setdefault(final.item.queue, set()).add(str(final.item.state))
        return ends

    def __str__(self) -> str:
        text = f"drained {self.drain:.2f} s after the last kill, {self.rest:.2f} s by the pace before"
        text += f"; {self.open_runs} handlers ran in killed workers"
        return f"{self.verdict.report()}\n{text}; {self.crashed} crashes on record"


async def random_kills(url: str, logs: Path, size: Kills, seed: int) -> Report:
    store = store_from_url(url)
    app = Redrive(store, log=False)
    for queue in (*MIX, "leaf"):
        app.queue(queue)
    async with app:
        with Fleet(url, logs, lease=size.lease, handlers="mix") as fleet:
            for _ in range(size.workers):
                fleet.start()
            work = _work(size.items, seed)
            producer = Producer(app, Log(logs / "producer.log"))
            await producer.enqueue_all(work)
            nemesis, began = Nemesis(fleet, seed), now_ns()
            extra = itertools.count()

            async def more() -> None:
                if await _nothing_left(store, fleet):
                    await producer.enqueue_all([(queue, f"more-{next(extra):06}") for queue in MIX * MORE])

            # Spread over all that will ever end, follow-ups included: the last one shortly before the end.
            total = len(work) + sum(queue == "chain" for queue, _ in work)
            for number in range(1, size.kills + 1):
                await _until_ended(store, total * number // (size.kills + 2), size.limit, fleet)
                await nemesis.strike(more, limit=size.limit)
            ended = await _ended(store)
            pace = ended / (nemesis.last_ns - began)
            await eventually(
                lambda: _nothing_left(store, fleet), limit=size.limit, what="the queues are empty", poll=0.02
            )
            drain = (now_ns() - nemesis.last_ns) / 1e9
            rest = (await _ended(store) - ended) / pace / 1e9
            await fleet.retire()
        found = await survey(store)
    endings = Counter(attempt.ending for final in found.finals.values() for attempt in final.attempts)
    verdict = judge(read_all(logs), found)
    return Report(verdict, found, drain, rest, nemesis.open_runs, endings[Ending.CRASHED])


def _work(items: int, seed: int) -> list[tuple[str, str]]:
    dice = random.Random(seed)
    return [(dice.choice(MIX), f"item-{number:06}") for number in range(items)]


async def _until_ended(store: Store, count: int, limit: float, fleet: Fleet) -> None:
    async def enough() -> bool:
        fleet.check()
        return await _ended(store) >= count

    await eventually(enough, limit=limit, what=f"{count} items ended")


async def _ended(store: Store) -> int:
    return sum(row.done + row.open for row in (await store.tally()).queues)


async def _nothing_left(store: Store, fleet: Fleet) -> bool:
    fleet.check()
    return not any(row.ready or row.leased for row in (await store.tally()).queues)
