"""R3: SIGKILL at every step of a fixed scenario, then a drain. Nothing lost, stuck, ended twice or moved by half."""

from __future__ import annotations

from tests.support.rig.crash import spread


def test_points_are_spread_with_both_ends() -> None:
    assert spread(100, 3) == [1, 51, 100]
    assert spread(3, 10) == [1, 2, 3]
