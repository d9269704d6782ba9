"""R2 deterministic simulation. Ten thousand simulated worlds, each a function of its seed, break no promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.simulation.play import reports

PARTS, PART = 20, 500


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_r2_ten_thousand_seeds_break_no_promise(part: int, record_property: Callable[[str, object], None]) -> None:
    record_property("size", f"{PARTS * PART:,} seeds")
    assert not reports(range(part * PART, (part + 1) * PART))
