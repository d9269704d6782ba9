"""R2: the real engine in simulated worlds. No seed breaks a promise, and every seed can be replayed exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulation.play import reports, simulate

FIRST, PARTS, SEEDS = 20, 8, 200
PART = (SEEDS - FIRST) // PARTS
ROOT = Path(__file__).parents[2]


def break_no_promise(seeds: range) -> None:
    if told := reports(seeds):
        pytest.fail(told, pytrace=False)  # an assertion would show a part of it


@pytest.mark.parametrize("start", range(0, FIRST, 5))
def test_r2_the_first_seeds_break_no_promise(start: int) -> None:
    break_no_promise(range(start, start + 5))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_r2_two_hundred_seeds_break_no_promise(part: int) -> None:
    start = FIRST + part * PART
    last = SEEDS if part == PARTS - 1 else start + PART
    break_no_promise(range(start, last))


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_r2_a_seed_replays_exactly(seed: int) -> None:
    assert len({simulate(seed).history for _ in range(3)}) == 1


def test_r2_seeds_differ() -> None:
    assert len({simulate(seed).history for seed in range(4)}) == 4


@pytest.mark.slow
def test_r2_a_seed_replays_exactly_in_another_process() -> None:
    seeds = (3, 8, 21)
    script = "import sys; from tests.support.simulation.play import simulate; "
    script += "print(*(simulate(int(seed)).history for seed in sys.argv[1:]))"
    command = [sys.executable, "-c", script, *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": "4321", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == [simulate(seed).history for seed in seeds]
