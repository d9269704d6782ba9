from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import durations
from redrive.core.backoff import constant, exponential, linear, never
from redrive.core.classify import dead_on, never_dead, retry_on
from redrive.core.policy import Policy
from redrive.errors import ConfigError


def test_defaults() -> None:
    policy = Policy()
    assert (policy.max_attempts, policy.max_age, policy.max_crashes) == (25, None, 3)
    assert policy.backoff == exponential("1s", factor=2, cap="1h")
    assert policy.describe() == "exponential 1s x2 up to 1h, 25 attempts, 3 crashes"


def test_durations_are_kept_in_milliseconds() -> None:
    policy = Policy(max_age="7d", max_hint=30)
    assert (policy.max_age, policy.max_hint) == (604_800_000, 30_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 2.5),
        ("max_attempts", "5"),
        ("max_attempts", True),
        ("max_crashes", 0),
        ("max_crashes", None),
        ("max_age", "soon"),
        ("max_age", -1),
        ("max_age", 0),
        ("max_hint", None),
        ("backoff", "1s"),
        ("backoff", None),
        ("rules", 5),
        ("rules", "card declined"),
        ("rules", [TimeoutError]),
        ("rules", retry_on(TimeoutError)),
    ],
)
def test_what_cannot_be_is_refused_by_name_with_a_fix(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**{field: value})
    assert caught.value.field == field
    assert caught.value.hint


def test_a_policy_cannot_be_changed() -> None:
    policy = Policy()
    with pytest.raises(AttributeError):
        policy.max_attempts = 1
    with pytest.raises(AttributeError):
        del policy.rules
    assert policy == Policy()


def test_equal_policies_are_equal_and_hash_alike() -> None:
    one = Policy(max_age="1h", rules=[dead_on(ValueError)])
    assert one == Policy(max_age=3600, rules=(dead_on(ValueError),))
    assert hash(one) == hash(Policy(max_age=3600, rules=(dead_on(ValueError),)))
    assert one != Policy(max_age="1h")
    assert one != "policy"


def test_a_rule_brings_its_own_backoff() -> None:
    policy = Policy(backoff=constant("1s"), rules=[retry_on(429, backoff=linear("1m")), retry_on(TimeoutError)])
    assert policy.delay(2, 0.5, "code:429") == 120_000
    assert policy.delay(2, 0.5, "error:TimeoutError") == 1000
    assert policy.delay(2, 0.5, "default") == 1000
    assert policy.delay(2, 0.5, "a rule of the last release") == 1000


def test_a_rule_takes_a_plain_function_as_backoff() -> None:
    assert Policy(rules=[retry_on(429, backoff=lambda failures: failures)]).delay(3, 0.5, "code:429") == 3000


def test_rules_of_one_name_are_told_apart() -> None:
    class Late(TimeoutError):
        pass

    class Other:
        class Late(ConnectionError):
            pass

    policy = Policy(rules=[retry_on(Late, backoff=constant("1s")), retry_on(Other.Late, backoff=constant("2s"))])
    assert [rule.name for rule in policy.rules] == ["error:Late", "error:Late#2"]
    verdict = policy.classify(Other.Late, None, "")
    assert verdict.rule == "error:Late#2"
    assert policy.delay(1, 0.5, verdict.rule) == 2000


def test_crash_delay_is_the_backoff_or_nothing_where_it_never_retries() -> None:
    assert Policy(backoff=linear("5s")).crash_delay(2, 0.5) == 10_000
    assert Policy(backoff=never()).crash_delay(1, 0.5) == 0


def test_ceiling_is_the_rules_or_the_usual_one() -> None:
    policy = Policy(rules=[never_dead(ConnectionError, ceiling=7), retry_on(TimeoutError)])
    assert policy.ceiling("error:ConnectionError") == 7
    assert policy.ceiling("error:TimeoutError") == 1000
    assert policy.ceiling("gone") == 1000


@given(st.integers(-(2**80), 2**80))
def test_r12_hints_are_clamped(after: int) -> None:
    assert Policy().clamp(after) == min(max(after, 0), 86_400_000)
    assert 0 <= Policy(max_hint="36500d").clamp(after) <= durations.MAX


def test_simulate_ends_with_the_death() -> None:
    assert Policy(backoff=constant("1s", jitter=1), max_attempts=3).simulate(10) == [1000, 1000, None]
    assert Policy(backoff=never()).simulate(10) == [None]
    assert Policy(backoff=constant("1s"), max_attempts=None).simulate(2) == [1000, 1000]


def test_describe_names_limits_and_rules() -> None:
    policy = Policy(constant("5s"), None, max_age="7d", rules=[dead_on("card declined"), never_dead(ConnectionError)])
    assert policy.describe() == (
        "constant 5s, any number of attempts, for 7d, 3 crashes, "
        "dead on words:card declined, keep on error:ConnectionError"
    )
    assert "constant 5s" in repr(policy)
