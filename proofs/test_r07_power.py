"""R7 power cut. Nothing acknowledged is lost when the power is cut, on a disk that forgets what was not synced.

The disk is tests/support/disk; where a machine does not allow it, these tests say "not run" and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.disk.drive import drive, needs
from tests.support.rig.size import CUTS, proof_size

SIZE = f"{CUTS[proof_size()]} cuts of each kind"

BINDINGS = ("stdlib", "apsw")
TEETH = 8
"""Cuts in which something must be lost where it may be lost. One cut in five keeps everything."""


# -- the power is cut ------------------------------------------------------------------------------------------------


def cut(folder: Path, mode: str, cuts: int, *, seed: int, binding: str = "auto") -> list[dict[str, Any]]:
    needs("disk")
    results = drive("cuts", folder, mode, seed, cuts, binding, limit=200 + cuts)
    assert len(results) == cuts
    kept = {what: sum(result[what] for result in results) for what in ("accepted", "ended")}
    losses = [result for result in results if result["faults"]]
    print(f"{mode} by {binding}: {cuts} cuts, {kept}, {len(losses)} with faults")  # noqa: T201 - by -s
    assert all(kept.values())
    return losses


def test_r7_a_disk_that_only_says_it_syncs_is_seen_to_lose_work(folder: Path) -> None:
    assert cut(folder, "lying", TEETH, seed=1)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("binding", BINDINGS)
def test_r7_nothing_acknowledged_is_lost_with_the_power(folder: Path, binding: str) -> None:
    assert cut(folder, "power-loss", CUTS[proof_size()], seed=1_000, binding=binding) == []


@pytest.mark.timeout(3600)
def test_r7_process_crash_keeps_the_file_sound_and_is_seen_to_lose_work(folder: Path) -> None:
    """Also the proof that these cuts cut."""
    losses = cut(folder, "process-crash", CUTS[proof_size()], seed=2_000)
    assert losses
    assert {kind for loss in losses for kind in loss["faults"]} <= {"lost", "reopened"}
