"""R4 random worker kills. Nothing lost, nothing stuck, every duplicate explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.core.states import State
from tests.support.rig.kills import Report, random_kills
from tests.support.rig.size import KILLS, Kills, proof_size

SIZE = f"{KILLS[proof_size()].items:,} items, {KILLS[proof_size()].kills} kills"

MARGIN = 10.0
"""Seconds for a loaded machine. The drain time itself is printed; here it is only kept from being absurd."""


def check(report: Report, size: Kills) -> None:
    print(report)  # noqa: T201 - shown when it fails, and by -s
    assert not report.verdict.faults, str(report)
    for queue, states in report.ends().items():
        assert states == ({State.DEAD} if queue == "doomed" else {State.DONE}), queue
    # Who was killed while it ran is charged; whoever ran twice must be one of these.
    assert report.open_runs > 0
    assert report.verdict.duplicates <= report.crashed
    reaper_period = size.lease / 4
    # Twice the lease: a worker killed in the middle of a rescue leaves a lease of its own behind.
    assert report.drain <= 2 * size.lease + 2 * reaper_period + MARGIN


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1])
async def test_r4_random_worker_kills(shared: str, tmp_path: Path, seed: int) -> None:
    size = KILLS[proof_size()]
    check(await random_kills(shared, tmp_path, size, seed), size)
