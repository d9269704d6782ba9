"""R24 with worker processes that are killed: no overtakes, no limit exceeded, no place leaked, and R4's verdict."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.rig import records as r
from tests.support.rig.bound import most_at_once, overtakes

# --- the judge has teeth ----------------------------------------------------------------------------------------------


def runs(*spans: tuple[str, int, int]) -> Sequence[r.Record]:
    starts = [r.Start(item, 1, 1, 7, since) for item, since, _ in spans]
    return [*starts, *(r.End(item, 1, 1, 7, until, "done") for item, _, until in spans)]


def test_an_overtake_is_seen() -> None:
    assert overtakes(runs(("a.1", 0, 5), ("a.2", 6, 9), ("b.1", 3, 8))) == []
    assert overtakes(runs(("a.1", 0, 5), ("a.2", 4, 9))) == ["a.2 began before a.1 was over"]
    assert overtakes(runs(("a.2", 0, 5), ("a.1", 6, 9))) == ["a.2 began before a.1 was over"]


def test_too_many_at_once_are_seen() -> None:
    assert most_at_once(runs(("a.1", 0, 5), ("a.2", 5, 9), ("b.1", 3, 8))) == (2, 1)
    assert most_at_once(runs(("a.1", 0, 5), ("a.2", 4, 9), ("b.1", 3, 8))) == (3, 2)


def test_who_was_killed_runs_no_longer() -> None:
    killed: list[r.Record] = [r.Start("a.1", 1, 1, 7, 0), r.Struck(7, "kill", 4), r.Start("a.2", 1, 1, 8, 6)]
    assert overtakes([*killed, r.End("a.2", 1, 1, 8, 9, "done")]) == []


def test_who_was_taken_over_runs_no_longer() -> None:
    """It may not know yet: what it says when its process wakes up is too late to count as an end."""
    slow: list[r.Record] = [r.Start("a.1", 1, 1, 7, 0), r.Reclaimed("a.1", 2, "w", "slow", 4)]
    again: list[r.Record] = [r.Start("a.1", 2, 3, 8, 5), r.End("a.1", 2, 3, 8, 6, "done")]
    late: list[r.Record] = [
        r.Start("a.2", 1, 1, 8, 7),
        r.End("a.1", 1, 1, 7, 8, "cancelled"),
        r.End("a.2", 1, 1, 8, 9, "done"),
    ]
    assert overtakes([*slow, *again, *late]) == []
    assert overtakes([*slow[:1], *again, *late]) == ["a.2 began before a.1 was over"]
