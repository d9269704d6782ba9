"""R3 crash at every step. A process dies before or after any write; a new one, an hour later, finishes all the work.

With real kills, also between statements and requests: proofs/test_r03_crash_points.py.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import get_args

import pytest

from redrive.core.acts import Change
from redrive.core.verbs import LeaseRequest
from redrive.testing.faults import SimulatedCrash
from tests.support.lab import Lab, open_lab
from tests.support.rig import records as r
from tests.support.rig.crash import MUTATING, READING, VERBS, spread
from tests.support.rig.inside import Process
from tests.support.rig.scenario import drain, play
from tests.support.stores import STORES

ITEMS = 8
TRIED = {"memory": 1, "sqlite": 19, "postgres": 41, "redis": 41}
"""Every point in memory, some on the others: an odd step meets points before and after a write."""


async def crash(lab: Lab, point: int) -> bool:
    """Play the scenario until the process dies at the point, and drain what it left. False: it ended before."""
    history: list[r.Record] = []
    process = Process(lab, history)
    process.crash_at(point)
    with contextlib.suppress(SimulatedCrash):
        await lab.drive(play(process, process.store, ITEMS, lab.clock))
    lab.clock.advance("1h")
    faults = await lab.drive(drain(Process(lab, history), await lab.reopen(), lab.clock))
    assert faults == {}, f"dead at point {point}: {faults}"
    return process.store.crashed


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
async def test_r3_a_process_that_dies_at_any_write_loses_nothing(kind: str, tmp_path: Path) -> None:
    crashed, point = True, 0
    while crashed:
        point += TRIED[kind]
        async with open_lab(kind, tmp_path) as lab:
            crashed = await crash(lab, point)
    assert point > 100, "there was something to die at"


async def test_the_scenario_plays_every_write_of_a_store(tmp_path: Path) -> None:
    """A new verb or change is a crash point as soon as it is there."""
    async with open_lab("memory", tmp_path) as lab:
        process = Process(lab, [])
        await lab.drive(play(process, process.store, ITEMS, lab.clock))
    assert VERBS > READING
    assert {call.verb for call in process.store.calls} >= MUTATING
    amended = {type(call.args[1]) for call in process.store.calls_of("amend")}
    assert amended == {*get_args(Change)}
    leased = [request for call in process.store.calls_of("lease") for request in call.args]
    assert any(isinstance(request, LeaseRequest) and request.item for request in leased)
    assert any(isinstance(request, LeaseRequest) and request.lane for request in leased)


def test_points_are_spread_with_both_ends() -> None:
    assert spread(100, 3) == [1, 51, 100]
    assert spread(3, 10) == [1, 2, 3]
