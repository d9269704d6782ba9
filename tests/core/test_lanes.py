from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.item import Priority
from redrive.core.lanes import (
    CYCLE,
    NUMBERS,
    PRIORITIES,
    WHOLE,
    choose,
    crashes_of,
    is_retry,
    level,
    level_of,
    may_retry,
    priority_of,
)
from redrive.testing.conformance.fresh_work import CHOICES, Choice
from tests.core.values import an_item

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
ENOUGH = 10**6


def rows(count: int, due: int = 0) -> list[tuple[int, int]]:
    return [(due, seq) for seq in range(count)]


def first(priority: Priority) -> int:
    return level(priority, tried=False, crashes=0)


def tried(priority: Priority) -> int:
    return level(priority, tried=True, crashes=0)


@pytest.mark.parametrize(
    ("priority", "was_tried", "crashes"), list(itertools.product(Priority, [False, True], range(4)))
)
def test_a_level_says_all_that_it_was_made_of(priority: Priority, was_tried: bool, crashes: int) -> None:
    number = level(priority, tried=was_tried, crashes=crashes)
    assert (crashes_of(number), is_retry(number), PRIORITIES[priority_of(number)]) == (crashes, was_tried, priority)


def test_what_nearly_every_item_has_is_level_0() -> None:
    assert level_of(an_item()) == 0
    assert [NUMBERS[priority] for priority in PRIORITIES] == [0, 1, 2]


@pytest.mark.parametrize("changes", [{"errors": 1}, {"crashes": 1}, {"replays": 1}])
def test_what_failed_crashed_or_was_replayed_is_a_retry(changes: dict[str, int]) -> None:
    assert is_retry(level_of(an_item(**changes)))


def test_the_level_of_what_was_only_given_back_is_that_of_a_first_attempt() -> None:
    assert level_of(an_item(deliveries=7, attempt=0)) == 0


def test_within_a_priority_what_was_due_first_goes_first() -> None:
    waiting = {first(NORMAL): [(5, 1), (7, 2)], tried(NORMAL): [(4, 9), (6, 3)]}
    assert choose(waiting, 4, retries=None, most_retries=ENOUGH, turn=0) == [3, 0, 3, 0]


def test_high_goes_first_but_in_the_turns_of_the_others() -> None:
    waiting = {first(HIGH): rows(50), first(NORMAL): rows(50), first(LOW): rows(50)}
    chosen = choose(waiting, 2 * CYCLE, retries=None, most_retries=ENOUGH, turn=0)
    expected = [first(HIGH)] * CYCLE
    expected[CYCLE // 2 - 1], expected[CYCLE - 1] = first(NORMAL), first(LOW)
    assert chosen == expected * 2


def test_the_turn_of_those_who_do_not_wait_is_another_s() -> None:
    assert choose({first(HIGH): rows(2)}, 2, retries=None, most_retries=ENOUGH, turn=CYCLE - 1) == [1, 1]
    assert choose({first(LOW): rows(2)}, 5, retries=None, most_retries=ENOUGH, turn=0) == [2, 2]


def test_retries_are_passed_over_beyond_their_share_and_fill_what_is_left() -> None:
    waiting = {0: rows(3, due=9), 3: rows(10)}
    assert choose(waiting, 5, retries=1, most_retries=ENOUGH, turn=0) == [3, 0, 0, 0, 3]
    assert choose(waiting, 5, retries=0, most_retries=ENOUGH, turn=0) == [0, 0, 0, 3, 3]
    assert choose(waiting, 5, retries=None, most_retries=ENOUGH, turn=0) == [3] * 5


def test_the_budget_of_retries_is_never_passed() -> None:
    waiting = {0: rows(1, due=9), 3: rows(10)}
    assert choose(waiting, 5, retries=None, most_retries=2, turn=0) == [3, 3, 0]
    assert choose(waiting, 5, retries=1, most_retries=2, turn=0) == [3, 0, 3]
    assert choose(waiting, 5, retries=None, most_retries=0, turn=0) == [0]


@given(
    counts=st.dictionaries(st.integers(0, 11), st.integers(0, 6)),
    limit=st.integers(0, 12),
    retries=st.none() | st.integers(0, 5),
    most=st.integers(0, 5),
    turn=st.integers(0, 100),
    share=st.none() | st.integers(1, WHOLE),
)
def test_it_is_as_full_as_the_budget_lets_it_be(
    counts: dict[int, int], limit: int, retries: int | None, *, most: int, turn: int, share: int | None
) -> None:
    waiting = {number: rows(count) for number, count in counts.items()}
    chosen = choose(waiting, limit, retries=retries, most_retries=most, turn=turn, share=share)
    taken = [number for number in chosen if is_retry(number)]
    firsts = sum(count for number, count in counts.items() if not is_retry(number))
    again = sum(count for number, count in counts.items() if is_retry(number))
    assert len(chosen) == min(limit, firsts + min(most, again))
    assert len(taken) <= most
    assert all(chosen.count(number) <= counts[number] for number in set(chosen))
    if retries is not None and len(taken) > retries:
        assert len(chosen) - len(taken) == min(limit, firsts)


@given(high=st.integers(CYCLE, 60), turn=st.integers(0, 100))
def test_nobody_waits_for_more_than_a_cycle(high: int, turn: int) -> None:
    waiting = {first(HIGH): rows(high), first(NORMAL): rows(1), first(LOW): rows(1)}
    chosen = choose(waiting, CYCLE, retries=None, most_retries=0, turn=turn)
    assert {first(NORMAL), first(LOW)} <= set(chosen)


# --- the share of retries ---


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_it_chooses_as_the_table_says(choice: Choice) -> None:
    waiting = {number: [(due, seq) for seq, due in enumerate(dues)] for number, dues in choice.waiting.items()}
    chosen = choose(
        waiting,
        choice.limit,
        retries=choice.retries,
        most_retries=ENOUGH,
        turn=choice.turn,
        share=choice.share,
    )
    assert tuple(chosen) == choice.levels


@pytest.mark.parametrize("share", [1, 20, 47, 48, 50, 100, 200, 250, 300, 333, 500, 667, 800, 950, 999, WHOLE])
@pytest.mark.parametrize("start", [0, 7, 19_990])
def test_every_priority_has_its_share_of_retries_and_of_first_attempts(share: int, start: int) -> None:
    """One lease at a time, with first attempts and older retries of every priority waiting."""
    waiting = {number: rows(1, due=0 if is_retry(number) else 9) for number in range(6)}
    turns = range(start, start + CYCLE * WHOLE)
    given = [choose(waiting, 1, retries=None, most_retries=ENOUGH, turn=turn, share=share)[0] for turn in turns]
    for priority, in_cycle in ((HIGH, CYCLE - 2), (NORMAL, 1), (LOW, 1)):
        assert given.count(tried(priority)) == in_cycle * share
        assert given.count(first(priority)) == in_cycle * (WHOLE - share)


@given(share=st.integers(1, WHOLE - 1), start=st.integers(0, 10**9))
def test_retries_have_about_their_share_of_any_thousand(share: int, start: int) -> None:
    granted = sum(may_retry(turn, share) for turn in range(start, start + 1000))
    assert abs(granted - share) <= 3


@given(share=st.integers(1, WHOLE - 1), start=st.integers(0, 10**9))
def test_neither_retries_nor_first_attempts_wait_for_long(share: int, start: int) -> None:
    turns = [may_retry(turn, share) for turn in range(start, start + 4 * WHOLE)]
    longest = {kind: max(len(list(run)) for of, run in itertools.groupby(turns) if of is kind) for kind in set(turns)}
    assert longest[False] <= 1.2 * WHOLE / share + 3
    assert longest[True] <= 1.2 * WHOLE / (WHOLE - share) + 3
