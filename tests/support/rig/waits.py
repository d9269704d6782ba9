"""How long work waits, in a lab's own time: exact on every store, whatever the machine is busy with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from redrive import Item, Policy, Redrive, constant
from redrive.core.item import Millis
from tests.support.lab import Lab


class Waits:
    """One worker with so many slots, each item taking so long. Waits are from being due to being begun."""

    def __init__(self, lab: Lab, app: Redrive, queue: str, *, slots: int, takes: Millis) -> None:
        self.of: dict[str, list[Millis]] = defaultdict(list)
        self.fails: Callable[[Item], bool] = lambda item: False

        @app.handler(queue, policy=Policy(backoff=constant("30s")), concurrency=slots, lease="10m")
        async def handle(item: Item) -> None:
            self.of[item.id.partition(".")[0]].append(lab.clock.now() - item.due_at)
            await lab.clock.sleep(takes)
            if self.fails(item):
                raise ConnectionError("the endpoint is down")

    @property
    def begun(self) -> int:
        return sum(map(len, self.of.values()))

    def has_begun(self, count: int) -> bool:
        return self.begun >= count

    def p95(self, who: str) -> Millis:
        waits = sorted(wait for name, all_of_it in self.of.items() if name.startswith(who) for wait in all_of_it)
        return waits[len(waits) * 95 // 100]
