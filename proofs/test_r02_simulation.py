"""R2: ten thousand simulated worlds, each a function of its seed."""

from __future__ import annotations

import pytest

from tests.support.simulation.play import reports

PARTS, PART = 20, 500


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_r2_ten_thousand_seeds_break_no_promise(part: int) -> None:
    assert not reports(range(part * PART, (part + 1) * PART))
