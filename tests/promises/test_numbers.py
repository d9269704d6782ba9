"""Runs are renumbered only if they are the same run."""

from __future__ import annotations

from msgspec.structs import replace

from tests.support.rig import records as r
from tests.support.rig.numbers import renumbered

WORKER = r.Worker("w", 7, 0)
START = r.Start("i", 1, 1, 7, 1)
END = r.End("i", 1, 1, 7, 2, "done")
FOLLOW = r.Follow("child", "i", 1, 2)
SETTLED = r.Settled("i", 2, "w", "done", "done", 3)


def test_a_lease_that_was_taken_back() -> None:
    changed = [replace(START, delivery=2), replace(END, delivery=2), replace(FOLLOW, delivery=2)]
    assert renumbered([WORKER, START, END, FOLLOW, SETTLED]) == [WORKER, *changed, SETTLED]


def test_a_word_that_was_refused_and_said_again_under_the_new_number() -> None:
    told: list[r.Record] = [r.Refused("i", 1, "w", 3), r.Settled("i", 2, "w", "done", "done", 4)]
    assert renumbered([WORKER, START, *told]) == [WORKER, replace(START, delivery=2), *told]


def test_a_word_that_counted_and_was_refused_when_it_was_said_again() -> None:
    told: list[r.Record] = [r.Refused("i", 1, "w", 3), r.Refused("i", 2, "w", 4)]
    assert renumbered([WORKER, START, *told]) == [WORKER, replace(START, delivery=2), *told]


def test_what_was_taken_back_and_then_taken_away_before_it_had_ended() -> None:
    lost = r.Lost("i", 2, "w", 3)
    assert renumbered([WORKER, START, lost]) == [WORKER, replace(START, delivery=2), lost]


def test_what_was_taken_back_and_then_released() -> None:
    released = replace(SETTLED, ending="released", state="ready")
    assert renumbered([WORKER, START, released]) == [WORKER, replace(START, delivery=2), released]


def test_what_was_taken_and_lost_before_it_had_begun_is_another_run() -> None:
    records: list[r.Record] = [WORKER, START, r.Refused("i", 1, "w", 3), r.Lost("i", 3, "w", 9)]
    assert renumbered(records) == records


def test_what_another_process_was_refused_stays() -> None:
    records: list[r.Record] = [WORKER, replace(START, pid=8), r.Refused("i", 2, "w", 3)]
    assert renumbered(records) == records


def test_what_another_process_settled_stays() -> None:
    records: list[r.Record] = [WORKER, replace(START, pid=8), replace(END, pid=8), SETTLED]
    assert renumbered(records) == records


def test_what_somebody_ran_under_that_number_stays() -> None:
    records: list[r.Record] = [WORKER, START, END, replace(START, delivery=2, pid=8), SETTLED]
    assert renumbered(records) == records


def test_what_was_settled_under_its_own_number_stays() -> None:
    records: list[r.Record] = [
        WORKER,
        START,
        END,
        replace(SETTLED, delivery=1, ending="failed", state="ready"),
        SETTLED,
    ]
    assert renumbered(records) == records


def test_what_a_reaper_settled_stays() -> None:
    records: list[r.Record] = [WORKER, START, replace(SETTLED, ending="crashed", state="ready")]
    assert renumbered(records) == records
