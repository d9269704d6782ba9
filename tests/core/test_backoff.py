from __future__ import annotations

import math
import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import durations
from redrive.core.backoff import (
    FALLBACK,
    Backoff,
    as_backoff,
    constant,
    custom,
    exponential,
    immediate,
    linear,
    never,
)
from redrive.errors import ConfigError

MILLION = 10**6
ROLLS = st.floats(0, 1)
FAILURES = st.integers(1, 60) | st.integers(1, MILLION)
LENGTHS = st.integers(0, 10**6).map(lambda millis: timedelta(milliseconds=millis))


@st.composite
def backoffs(draw: st.DrawFn, jitter: st.SearchStrategy[float] = ROLLS) -> Backoff:
    spread, cap = draw(jitter), draw(st.none() | LENGTHS | st.just("36500d"))
    kind = draw(st.sampled_from(["constant", "linear", "exponential"]))
    if kind == "constant":
        return constant(draw(LENGTHS), jitter=spread, cap=cap)
    if kind == "linear":
        return linear(draw(LENGTHS), step=draw(st.none() | LENGTHS), cap=cap, jitter=spread)
    return exponential(draw(LENGTHS), factor=draw(st.integers(1, 100) | st.floats(1, 1e6)), cap=cap, jitter=spread)


def limit_of(backoff: Backoff) -> int:
    return durations.MAX if backoff.cap is None else backoff.cap


@given(backoffs(), FAILURES, ROLLS)
def test_r12_never_negative_never_above_cap(backoff: Backoff, failures: int, roll: float) -> None:
    delay = backoff.delay(failures, roll)
    assert isinstance(delay, int)
    assert 0 <= delay <= limit_of(backoff)


@given(backoffs(jitter=st.just(0.0)), FAILURES, ROLLS)
def test_r12_base_is_monotone_and_without_jitter_the_roll_is_nothing(
    backoff: Backoff, failures: int, roll: float
) -> None:
    now, later = backoff.delay(failures, roll), backoff.delay(failures + 1, 1 - roll)
    assert now is not None
    assert later is not None
    assert now <= later


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(1, 60))
def test_r12_a_whole_factor_is_exact(base: int, factor: int, failures: int) -> None:
    wanted = min(base * factor ** (failures - 1), durations.MAX)
    assert exponential(timedelta(milliseconds=base), factor=factor).delay(failures, 0.1) == wanted


@given(st.integers(1, 10**6), ROLLS, ROLLS, FAILURES)
def test_r12_jitter_stays_within_its_share(base: int, jitter: float, roll: float, failures: int) -> None:
    delay = constant(timedelta(milliseconds=base), jitter=jitter).delay(failures, roll)
    assert delay is not None
    assert math.floor(base * (1 - jitter)) <= delay <= math.ceil(base * (1 + jitter))
    assert abs(delay - base * (1 + jitter * (2 * roll - 1))) <= 1


def test_jitter_reaches_both_ends() -> None:
    backoff = constant("10s", jitter=0.5)
    assert [backoff.delay(1, roll) for roll in (0, 0.5, 1)] == [5000, 10_000, 15_000]


@pytest.mark.parametrize("factor", [2, 3, 1.0001, 1.5, 2.0, 1e9])
@pytest.mark.parametrize("cap", [None, "36500d", sys.maxsize])
def test_r12_finite_at_the_millionth_failure_with_the_largest_cap(factor: float, cap: Any) -> None:
    assert exponential("1s", factor=factor, cap=cap).delay(MILLION, 0.5) == durations.MAX
    assert exponential("1s", factor=factor, cap=cap, jitter=1).delay(MILLION, 1) == durations.MAX


def test_r12_linear_is_finite_at_the_millionth_failure() -> None:
    assert linear("36500d").delay(MILLION, 0.5) == durations.MAX
    assert linear("1s").delay(MILLION, 0.5) == MILLION * 1000


@pytest.mark.parametrize("cap", [None, "36500d", sys.maxsize, 2**63, 10**30])
@pytest.mark.parametrize("failures", [MILLION, 10**18])
@pytest.mark.parametrize("jitter", [0, 0.5, 1])
def test_r12_every_kind_is_finite_whatever_the_cap(cap: Any, failures: int, jitter: float) -> None:
    for backoff in (
        constant("1h", cap=cap, jitter=jitter),
        linear("1s", step="36500d", cap=cap, jitter=jitter),
        exponential("1ms", factor=1.5, cap=cap, jitter=jitter),
    ):
        for roll in (0.0, 0.5, 1.0):
            delay = backoff.delay(failures, roll)
            assert isinstance(delay, int)
            assert 0 <= delay <= durations.MAX


ANSWERS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | LENGTHS | st.timedeltas()


@given(ANSWERS, FAILURES, ROLLS)
def test_r12_a_custom_function_is_held_to_the_same_bounds(answer: Any, failures: int, roll: float) -> None:
    delay = custom(lambda _failures: answer).delay(failures, roll)
    assert delay is None if answer is None else isinstance(delay, int) and 0 <= delay <= durations.MAX


@given(backoffs(), st.sampled_from([float("nan"), -5.0, 7.0, float("inf")]))
def test_a_wild_roll_stays_within_bounds(backoff: Backoff, roll: float) -> None:
    delay = backoff.delay(3, roll)
    assert delay is not None
    assert 0 <= delay <= limit_of(backoff)


def test_failures_below_one_count_as_the_first() -> None:
    assert [exponential("1s").delay(failures, 0.5) for failures in (-1, 0, 1)] == [1000, 1000, 1000]


def test_linear_with_a_step_and_a_cap() -> None:
    backoff = linear("1m", step="30s", cap="2m")
    assert [backoff.delay(failures, 0.5) for failures in range(1, 5)] == [60_000, 90_000, 120_000, 120_000]


def test_a_broken_factor_is_rounded_up_so_that_nothing_is_early() -> None:
    backoff = exponential("1ms", factor=1.5)
    assert [backoff.delay(failures, 0.5) for failures in range(1, 6)] == [1, 2, 3, 4, 6]


def test_never_and_immediate() -> None:
    assert never().delay(1, 0.5) is None
    assert immediate().delay(MILLION, 0.5) == 0


@pytest.mark.parametrize(
    ("answer", "delay"),
    [(None, None), (0, 0), ("5m", 300_000), (timedelta(seconds=2), 2000), (0.5, 500)],
)
def test_custom_answers_in_any_duration(answer: Any, delay: int | None) -> None:
    assert custom(lambda _failures: answer).delay(1, 0.5) == delay


@pytest.mark.parametrize("rubbish", ["soon", -1, float("nan"), True, object(), 10**30, [5]])
def test_custom_that_answers_rubbish_falls_back(rubbish: Any) -> None:
    assert custom(lambda _failures: rubbish).delay(1, 0.5) == FALLBACK


def test_custom_that_raises_falls_back() -> None:
    table = {1: "1s"}
    backoff = custom(lambda failures: table[failures])
    assert [backoff.delay(failures, 0.5) for failures in (1, 2)] == [1000, FALLBACK]


def test_custom_is_told_the_number_of_the_failure() -> None:
    assert custom(lambda failures: failures * 10).delay(7, 0.5) == 70_000


def test_as_backoff_takes_a_backoff_or_a_plain_function() -> None:
    backoff = constant("1s")
    assert as_backoff(backoff) is backoff
    assert as_backoff(lambda _failures: "2s").delay(1, 0.5) == 2000


async def sleepy(failures: int) -> int:
    return failures


@pytest.mark.parametrize("value", [None, 5, "1s", immediate, exponential, sleepy])
def test_as_backoff_refuses_the_rest(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        as_backoff(value)
    assert caught.value.field == "backoff"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("factor", lambda: exponential("1s", factor=0.5)),
        ("factor", lambda: exponential("1s", factor=float("nan"))),
        ("factor", lambda: exponential("1s", factor=float("inf"))),
        ("factor", lambda: exponential("1s", factor=True)),
        ("factor", lambda: exponential("1s", factor="2")),  # type: ignore[arg-type]  # what is tested
        ("jitter", lambda: constant("1s", jitter=1.1)),
        ("jitter", lambda: constant("1s", jitter=-0.1)),
        ("jitter", lambda: linear("1s", jitter=float("nan"))),
        ("cap", lambda: constant("1s", cap=-1)),
        ("cap", lambda: exponential("1s", cap="soon")),
        ("base", lambda: exponential("")),
        ("step", lambda: linear("1s", step="x")),
        ("backoff", lambda: custom(5)),  # type: ignore[arg-type]  # what is tested
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def by_hand(_failures: int) -> str:
    return "1s"


@pytest.mark.parametrize(
    ("backoff", "text"),
    [
        (exponential("1s", factor=2, cap="1h"), "exponential 1s x2 up to 1h"),
        (exponential("2s", factor=1.5, jitter=0.2), "exponential 2s x1.5, jitter 20%"),
        (linear("5m"), "linear 5m"),
        (linear("1m", step="30s", cap="15m"), "linear 1m + 30s up to 15m"),
        (constant("30s"), "constant 30s"),
        (immediate(), "immediate"),
        (never(), "never"),
        (custom(by_hand), "custom by_hand"),
    ],
)
def test_describe(backoff: Backoff, text: str) -> None:
    assert backoff.describe() == text


def test_a_backoff_is_a_frozen_value() -> None:
    assert exponential("60s", cap="1h") == exponential("1m", cap=3600)
    with pytest.raises(AttributeError):
        exponential("1s").base = 5  # type: ignore[misc]  # what is tested
