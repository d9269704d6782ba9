"""R0 for the whole rig: bugs planted between engine and store are named, and an honest store raises no alarm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rig.fleet import ROOT, environment

NAMED = {
    "honest": set[str](),
    "forgetful": {"lost"},
    "silent": {"unexplained_duplicates"},
    "childless": {"lost"},
    "shameless": {"wrong_attempts"},
    "tactful": {"half_moved"},
    "optimist": {"double_terminal"},
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", NAMED)
def test_r0_a_planted_bug_is_named(tmp_path: Path, bug: str) -> None:
    command = [sys.executable, "-m", "tests.support.rig.plant", str(tmp_path), bug]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    faults = json.loads(done.stdout)
    assert NAMED[bug] <= faults.keys(), faults
    assert bool(faults) == (bug != "honest"), faults
