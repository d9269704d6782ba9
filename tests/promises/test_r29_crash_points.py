"""R29 and R3: the scheduler that leads dies at one point after another. Who takes over leaves no tick out."""

from __future__ import annotations

import pytest

from redrive.core.schedule import KIND, Schedule, tick_id
from redrive.core.verbs import DocumentWrite
from redrive.engine.schedule import Scheduler
from redrive.events import Events
from redrive.office.schedules import declare_schedules
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.support.lab import Lab
from tests.support.rig.crash import spread
from tests.support.rig.scheduler import ticks

EVERY = {"often": 5_000, "less-often": 12_000}
STEP = 1_000
STEPS = 60
"""Far longer than it takes another to take over, far less than what makes a tick a missed one."""
LEFT = 65
"""Percent of the points: after the others there would be no time for anybody to take over before the end."""
SOME = 6


class Runs:
    """One run after the other on one store, each with schedules of its own."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._number = 0

    async def play(self, point: int | None) -> int:
        """How many points the one that leads first has passed."""
        lab, clock = self._lab, self._lab.clock
        self._number += 1
        names = {f"{name}-{self._number}": every for name, every in EVERY.items()}
        await declare_schedules(lab.store, [Schedule(name, "q", b"null", every=every) for name, every in names.items()])
        since = clock.now()
        faulty = FaultyStore(lab.shared)
        if point is not None:
            faulty.crash_at(point)
        scheduler = Scheduler(faulty, f"first-{self._number}", events=Events(), clock=clock)
        for _ in range(STEPS):
            clock.advance(STEP)
            try:
                await scheduler.turn()
            except SimulatedCrash:
                scheduler = Scheduler(lab.shared, f"second-{self._number}", events=Events(), clock=clock)
        assert faulty.crashed == (point is not None)
        for name, every in names.items():
            first = (since // every + 1) * every
            expected = [tick_id(name, tick) for tick in range(first, clock.now() + 1, every)]
            assert await ticks(lab.store, name) == expected, f"dead at point {point}"
        # The next run finds nobody in the lead, and no schedule of this one.
        await lab.store.write_documents([DocumentWrite(KIND, name, None) for name in names])
        clock.advance(60 * STEP)
        return faulty.points


@pytest.mark.slow
async def test_r29_a_leader_that_dies_at_some_point(lab: Lab) -> None:
    runs = Runs(lab)
    points = await runs.play(None)
    for point in spread(points * LEFT // 100, SOME):
        await runs.play(point)


@pytest.mark.slow
async def test_r29_a_leader_that_dies_at_any_point(memory_lab: Lab) -> None:
    runs = Runs(memory_lab)
    points = await runs.play(None)
    for point in range(1, points * LEFT // 100):
        await runs.play(point)
