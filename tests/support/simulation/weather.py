"""What a seed draws beforehand: sizes, time scales, and which faults are to be met how often."""

from __future__ import annotations

import random
from dataclasses import dataclass

from redrive.core.item import Millis
from tests.support.simulation.network import READS, Fault

NEMESES = ("crash", "pause", "stop", "partition", "store clock", "worker clock", "operator", "producer crash")


@dataclass(frozen=True)
class Plan:
    """`backoff` is what the policies say, `faults` the probability of each fault of a store call."""

    lease: Millis
    backoff: Millis
    workers: int
    items: int
    ordered: int
    timed: bool
    gate: bool
    route: bool
    schedule: bool
    max_crashes: int
    span: Millis
    """How long faults go on."""
    nemeses: tuple[str, ...]
    blows: int
    faults: dict[Fault, float]

    @property
    def drain(self) -> Millis:
        """Simulated time in which everything must have ended once faults have stopped."""
        return 30 * self.lease + 60_000


def draw_plan(dice: random.Random) -> Plan:
    lease = dice.choice((2_000, 4_000, 10_000))
    rate = dice.choice((0.0, 0.05, 0.1, 0.15))
    chosen = [fault for fault in Fault if dice.random() < 0.5]
    faults = {fault: rate * (0.05 if "CRASH" in fault.name else 1.0) / len(chosen) for fault in chosen}
    nemeses = tuple(name for name in NEMESES if dice.random() < 0.5)
    return Plan(
        lease=lease,
        backoff=dice.choice((100, 500, lease // 2)),
        workers=dice.choice((1, 2, 2, 3)),
        items=dice.randrange(6, 18),
        ordered=dice.choice((0, 0, 4, 8)),
        timed=dice.random() < 0.3,
        gate=dice.random() < 0.25,
        route=dice.random() < 0.1,
        # An hour of ticks at once would take long.
        schedule=dice.random() < 0.2 and "store clock" not in nemeses,
        max_crashes=dice.choice((2, 3, 1_000)),
        span=4 * lease,
        nemeses=nemeses,
        blows=dice.randrange(2, 8) if nemeses else 0,
        faults=faults,
    )


class Weather:
    """Draws the fault of each store call while it is stormy, and the delay of each message."""

    def __init__(self, dice: random.Random, plan: Plan) -> None:
        self._dice = dice
        self._plan = plan
        self._bounds: list[tuple[float, Fault]] = []
        bound = 0.0
        for fault, rate in plan.faults.items():
            bound += rate
            self._bounds.append((bound, fault))
        self._most = bound
        self.stormy = True

    def draw(self, verb: str) -> Fault | None:
        if not self.stormy or not self._most:
            return None
        roll = self._dice.random()
        if roll >= self._most:
            return None
        fault = next(fault for bound, fault in self._bounds if roll < bound)
        if fault is Fault.LATE and verb in READS:
            return Fault.LOST
        return fault

    def delay(self, fault: Fault | None) -> Millis:
        if fault is Fault.SLOW:
            return self._dice.randrange(self._plan.lease // 8, self._plan.lease * 3 // 2)
        roll = self._dice.random()
        return 0 if roll < 0.6 else int(roll * 20) - 11
