"""R0 for the simulation: bugs planted in the engine and in the store are each named within a few seeds."""

from __future__ import annotations

import pytest

from tests.support.simulation.plants import PLANTS
from tests.support.simulation.play import simulate

SEEDS = 400
"""The rarest bug shows in about one of eighty; the search ends with the first that names it."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTS)
def test_r0_planted_bugs_are_named(bug: str) -> None:
    planted = PLANTS[bug]
    with planted.patched():
        assert any(planted.named in simulate(seed, planted.through).faults for seed in range(SEEDS))


def test_a_fault_is_reported_with_the_command_that_replays_it() -> None:
    planted = PLANTS["forgetful"]
    outcome = simulate(1, planted.through)
    assert "lost: item-03: accepted, and in no state" in outcome.report()
    assert outcome.report().endswith("python -m tests.support.simulation 1 --trace")
