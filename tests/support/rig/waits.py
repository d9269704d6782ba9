"""How long work waits, in a lab's own time: exact on every store, whatever the machine is busy with."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import Millis, NewItem
from tests.support.lab import Lab


class Waits:
    """One worker with so many slots, each item taking so long. Waits are from being due to being begun."""

    def __init__(self, lab: Lab, app: Redrive, queue: str, *, slots: int, takes: Millis) -> None:
        self._lab = lab
        self.of: dict[str, list[Millis]] = defaultdict(list)
        self.fails: Callable[[Item], bool] = lambda item: False
        self.running = 0
        self.most_running = 0

        @app.handler(queue, policy=Policy(backoff=constant("30s")), concurrency=slots, lease="10m")
        async def handle(item: Item) -> None:
            self.of[item.id.partition(".")[0]].append(lab.clock.now() - item.due_at)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await lab.clock.sleep(takes)
            finally:
                self.running -= 1
            if self.fails(item):
                raise ConnectionError("the endpoint is down")

    async def offer(self, make: Callable[[int], NewItem], count: int, every: Millis) -> None:
        """One after the other, by the lab's clock."""
        for number in range(count):
            await self._lab.store.put([make(number)])
            await self._lab.clock.sleep(every)

    def p95(self, who: str) -> Millis:
        waits = sorted(wait for name, all_of_it in self.of.items() if name.startswith(who) for wait in all_of_it)
        return waits[len(waits) * 95 // 100]


async def through(lab: Lab, app: Redrive, *work: object) -> None:
    """Offer while a worker runs, then let it finish what it can."""
    async with lab.working(app):
        await lab.drive(asyncio.gather(*work), limit="10d")  # type: ignore[call-overload]  # coroutines of any kind
        await lab.pass_time("5s")
