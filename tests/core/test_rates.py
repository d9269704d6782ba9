"""Rates as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import rates
from redrive.core.meters import Rate
from redrive.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", Rate(100, 1000)),
        ("100/min", Rate(100, 60_000)),
        ("100/m", Rate(100, 60_000)),
        ("1,000 / hour", Rate(1000, 3_600_000)),
        ("5 per 10s", Rate(5, 10_000)),
        ("5/10s", Rate(5, 10_000)),
        ("3 per day", Rate(3, 86_400_000)),
        ("1/1h30m", Rate(1, 5_400_000)),
        ("100/min burst 20", Rate(100, 60_000, 20)),
        ("100/min, burst 1_000", Rate(100, 60_000, 1000)),
        (" 7/ms ", Rate(7, 1)),
        (Rate(3, 500, 2), Rate(3, 500, 2)),
    ],
)
def test_texts(text: str | Rate, rate: Rate) -> None:
    assert rates.parse(text) == rate


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "it is empty"),
        ("100", "not a number, a slash and a time"),
        ("fast", "not a number, a slash and a time"),
        ("/min", "not a number, a slash and a time"),
        ("1.5/s", "not a number, a slash and a time"),
        ("-1/s", "must not carry a sign"),
        ("10/", "not a number, a slash and a time"),
        ("10/fortnight", "the unit 'fortnight' is unknown"),
        ("0/s", "its count is 0"),
        ("10/0s", "its time is 0"),
        ("10/s burst 0", "its burst is 0"),
        ("9999999999/s", "above 1,000,000,000"),
        ("5000000/s", "faster than one each microsecond"),
        ("1" * 100, "longer than 64"),
        (10, "it is a int"),
        (None, "it is a NoneType"),
        (Rate(0), "its count is 0"),
        (Rate(True), "its count is not a whole number"),
        (Rate(1.5), "its count is not a whole number"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_rate_is_said_with_its_field(value: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rates.parse(value, field="limits.rate")
    assert says in str(raised.value)
    assert str(raised.value).startswith("limits.rate: ")
    assert "100/min" in raised.value.hint


@given(
    st.builds(
        Rate,
        st.integers(1, 10**6),
        st.integers(1000, 86_400_000),
        st.none() | st.integers(1, 10**6),
    )
)
def test_what_is_shown_reads_back(rate: Rate) -> None:
    assert rates.parse(rates.format(rate)) == rate


def test_the_usual_units_are_shown_as_words() -> None:
    assert [rates.format(Rate(5, per)) for per in (1000, 60_000, 3_600_000, 86_400_000, 10_000)] == [
        "5/s",
        "5/min",
        "5/h",
        "5/d",
        "5/10s",
    ]
