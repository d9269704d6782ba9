"""R0 the checker has teeth. Bugs planted between engine and store are named, and an honest store raises no alarm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from proofs.conftest import SHARED
from tests.support.rig.fleet import ROOT, environment

NAMED = {
    "honest": set[str](),
    "forgetful": {"lost"},
    "silent": {"unexplained_duplicates"},
    "childless": {"lost"},
    "shameless": {"wrong_attempts"},
    "tactful": {"half_moved"},
    "optimist": {"double_terminal"},
    "skewed": {"early"},
    "fair": set[str](),
    "unfenced": {"double_terminal"},
    "hasty": {"premature"},
}

SIZE = f"{len(NAMED) - 2} bugs"


@pytest.mark.parametrize("store", SHARED)
def test_r0_planted_bugs_are_named(tmp_path: Path, store: str) -> None:
    command = [sys.executable, "-m", "tests.support.rig.plant", str(tmp_path), store]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == NAMED.keys()
    for bug, faults in found.items():
        assert NAMED[bug] <= faults.keys(), (bug, faults)
        assert bool(faults) == (bug not in ("honest", "fair")), (bug, faults)
