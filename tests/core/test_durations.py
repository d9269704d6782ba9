from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import durations
from redrive.errors import BadDuration


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("30", 30), (" 30 s ", 30), ("5m", 300), ("1hour", 3600), ("2days", 172_800)]
)
def test_durations_q05(text: str, seconds: float) -> None:
    assert durations.parse(text) == round(seconds * 1000)


@pytest.mark.parametrize(
    ("value", "millis"),
    [
        (0, 0),
        (30, 30_000),
        (1.5, 1500),
        (16.1, 16_100),
        (0.0001, 1),
        (1e-300, 1),
        ("0.1ms", 1),
        (timedelta(minutes=2), 120_000),
        (timedelta(microseconds=1), 1),
        ("1h30m", 5_400_000),
        ("1 h 30 m", 5_400_000),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("1.5s", 1500),
        ("1m1.5s", 61_500),
        ("5MIN", 300_000),
        ("PT1H30M", 5_400_000),
        ("P7D", 604_800_000),
        ("P1W", 604_800_000),
        ("P1DT12H", 129_600_000),
        ("PT0.5S", 500),
        ("PT0,5S", 500),
        ("36500d", durations.MAX),
        *[(f"1{suffix}", 1) for suffix in ("ms", "millis", "millisecond", "milliseconds")],
        *[(f"1{suffix}", 1000) for suffix in ("s", "sec", "secs", "second", "seconds")],
        *[(f"1{suffix}", 60_000) for suffix in ("m", "min", "mins", "minute", "minutes")],
        *[(f"1{suffix}", 3_600_000) for suffix in ("h", "hr", "hrs", "hour", "hours")],
        *[(f"1{suffix}", 86_400_000) for suffix in ("d", "day", "days")],
        *[(f"1{suffix}", 604_800_000) for suffix in ("w", "week", "weeks")],
    ],
)
def test_is_read(value: Any, millis: int) -> None:
    assert durations.parse(value) == millis


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(seconds=-1), "negative"),
        ("-5s", "sign"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("nan", "number"),
        ("5x", "unit 'x'"),
        ("s", "number"),
        ("5 5s", "missing"),
        ("1h30", "missing"),
        ("5m1h", "once, the longer before the shorter"),
        ("5m5m", "once, the longer before the shorter"),
        ("1.5h30m", "fraction"),
        ("PT1.5H30M", "fraction"),
        ("P", "ISO"),
        ("PT", "ISO"),
        ("P1DT", "ISO"),
        ("P1Y", "ISO"),
        ("PT5M1H", "ISO"),
        ("٣s", "number"),
        (True, "truth"),
        (None, "NoneType"),
        (b"5s", "bytes"),
        ("36500d1ms", "100 years"),
        pytest.param(10**5000, "100 years", id="five thousand digits"),
        (1e300, "100 years"),
        pytest.param("9" * 1_000_000, "characters", id="a million digits"),
    ],
)
def test_is_refused_with_field_and_reason(value: Any, why: str) -> None:
    with pytest.raises(BadDuration) as caught:
        durations.parse(value, field="cooldown")
    assert caught.value.field == "cooldown"
    assert why in caught.value.message
    assert "1h30m" in caught.value.hint
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "0s"),
        (200, "200ms"),
        (1500, "1.5s"),
        (1001, "1.001s"),
        (60_000, "1m"),
        (60_200, "1m200ms"),
        (5_400_000, "1h30m"),
        (604_800_000, "7d"),
        (-5000, "-5s"),
    ],
)
def test_format(millis: int, text: str) -> None:
    assert durations.format(millis) == text


@given(st.integers(0, durations.MAX))
def test_format_is_read_back(millis: int) -> None:
    assert durations.parse(durations.format(millis)) == millis


@given(st.floats(0, 1e9))
def test_a_float_is_never_early_and_at_most_a_millisecond_late(seconds: float) -> None:
    exact = seconds * 1000
    assert exact * (1 - 1e-15) <= durations.parse(seconds) <= exact * (1 + 1e-15) + 1


@given(st.text() | st.text("0123456789.hmsdwPT ", max_size=12))
def test_any_text_is_a_duration_or_a_bad_one(text: str) -> None:
    try:
        millis = durations.parse(text)
    except BadDuration:
        return
    assert 0 <= millis <= durations.MAX
