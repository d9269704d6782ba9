"""H-28 an ordered endpoint in simulated worlds. A thousand of them, each a function of its seed, break no promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.simulation.hooks import simulate

PARTS, PART = 10, 100


@pytest.mark.parametrize("part", range(PARTS))
def test_h28_a_thousand_seeds_break_no_promise(part: int, record_property: Callable[[str, object], None]) -> None:
    record_property("size", f"{PARTS * PART:,} seeds")
    seeds = range(part * PART, (part + 1) * PART)
    assert {seed: found for seed in seeds if (found := simulate(seed)[0])} == {}
