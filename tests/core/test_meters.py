from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.meters import Rate, opens_at, room, spent

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("rate", "interval", "most"),
    [
        (Rate(100), 10_000, 100),
        (Rate(100, 60_000), 600_000, 1),
        (Rate(6_000, 60_000), 10_000, 100),
        (Rate(1, 10_000), 10 * SECOND, 1),
        (Rate(5, 1_000, 20), 200_000, 20),
        (Rate(10**9), 1, 10**9),
    ],
)
def test_a_rate_is_an_interval_and_a_burst(rate: Rate, interval: int, most: int) -> None:
    assert (rate.interval, rate.most) == (interval, most)


def test_a_meter_begins_full_and_gives_one_each_interval() -> None:
    now = 50 * SECOND
    assert room(SECOND, 3, 0, now) == 3
    full_at = spent(SECOND, 0, now, 3)
    assert room(SECOND, 3, full_at, now) == 0
    assert room(SECOND, 3, full_at, now + SECOND - 1) == 0
    assert room(SECOND, 3, full_at, now + SECOND) == 1
    assert room(SECOND, 3, full_at, now + 60 * SECOND) == 3


def test_taking_nothing_moves_nothing() -> None:
    assert spent(SECOND, 7, 50 * SECOND, 0) == 7


def test_a_meter_that_was_shut_for_an_interval() -> None:
    now, burst = 50 * SECOND, 3
    full_at = now + burst * SECOND
    assert room(SECOND, burst, full_at, now) == 0
    assert opens_at(SECOND, burst, full_at) == now + SECOND


@given(
    interval=st.integers(1, 10**7),
    burst=st.integers(1, 50),
    waits=st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 60)), max_size=30),
)
def test_no_more_than_the_burst_and_one_each_interval(interval: int, burst: int, waits: list[tuple[int, int]]) -> None:
    start = now = 10**12
    full_at = given_so_far = 0
    for wait, wanted in waits:
        now += wait
        count = min(wanted, room(interval, burst, full_at, now))
        full_at = spent(interval, full_at, now, count)
        given_so_far += count
        assert given_so_far <= burst + (now - start) // interval
        assert 0 <= room(interval, burst, full_at, now) <= burst


@given(
    interval=st.integers(1, 10**7), burst=st.integers(1, 50), full_at=st.integers(0, 10**9), now=st.integers(0, 10**9)
)
def test_it_opens_when_it_has_room(interval: int, burst: int, full_at: int, now: int) -> None:
    assert (room(interval, burst, full_at, now) >= 1) == (now >= opens_at(interval, burst, full_at))
