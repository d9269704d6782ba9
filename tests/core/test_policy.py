from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import durations
from redrive.core.backoff import constant, exponential, linear, never
from redrive.core.classify import dead_on, never_dead, rate_limited, retry_on
from redrive.core.item import Failure
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
        ("routes", ["timeout"]),
        ("routes", {"timeout": ""}),
        ("routes", {"timeout": None}),
        ("routes", {"timeout": "two words"}),
        ("routes", {"": "slow"}),
        ("routes", {int: "slow"}),
        ("routes", {404: "slow"}),
        ("route", None),
        ("route", "x" * 129),
        ("route", "new\nline"),
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
    routed = Policy(routes={ValueError: "data", "timeout": "slow"}, route="rest")
    assert routed == Policy(routes={"ValueError": "data", "timeout": "slow"}, route="rest")
    assert hash(routed) == hash(Policy(routes={"ValueError": "data", "timeout": "slow"}, route="rest"))
    assert routed != Policy(routes={"ValueError": "data", "timeout": "slow"})


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


def test_describe_names_routes() -> None:
    policy = Policy(constant("5s"), 3, routes={TimeoutError: "slow", "data": "bad"}, route="rest")
    assert policy.describe() == "constant 5s, 3 attempts, 3 crashes, TimeoutError to slow, data to bad, letters to rest"


class Refused(ConnectionError):
    pass


class RefusedTwice(Refused):
    pass


def died_of(kind: str, category: str = "error") -> Failure:
    return Failure(kind, "no", category, "default", "c0ffee000000")


HERE = __name__


@pytest.mark.parametrize(
    ("kind", "category", "route"),
    [
        (f"{HERE}.Refused", "connection", "by-class"),
        (f"{HERE}.RefusedTwice", "connection", "by-class"),
        ("ConnectionResetError", "connection", "by-name"),
        ("ConnectionError", "connection", "by-name"),
        ("shop.Declined", "auth", "by-full-name"),
        ("mail.Declined", "auth", "by-category"),
        ("shop.pay.Frozen", "error", "by-short-name"),
        ("shop.Unknown", "auth", "by-category"),
        ("shop.Unknown", "error", "rest"),
        ("redrive.WorkerLost", "crash", "crashes"),
        ("", "", "rest"),
    ],
)
def test_a_route_is_found_by_type_then_category_then_the_usual_one(kind: str, category: str, route: str) -> None:
    policy = Policy(
        routes={
            "auth": "by-category",
            "connection": "too-late",
            "ConnectionError": "by-name",
            Refused: "by-class",
            "shop.Declined": "by-full-name",
            "Frozen": "by-short-name",
            "crash": "crashes",
        },
        route="rest",
    )
    assert policy.route_of(died_of(kind, category)) == route


def test_the_nearest_kin_gives_the_route_whatever_the_order() -> None:
    pairs: list[tuple[str | type[BaseException], str]] = [(OSError, "io"), (ConnectionError, "net")]
    for routes in (dict(pairs), dict(reversed(pairs))):
        assert Policy(routes=routes).route_of(died_of("ConnectionResetError")) == "net"
        assert Policy(routes=routes).route_of(died_of("PermissionError")) == "io"
        assert Policy(routes=routes).route_of(died_of("KeyError")) == ""


def test_without_routes_letters_have_none() -> None:
    assert Policy().route_of(died_of("ValueError")) == ""
    assert Policy(route="all").route_of(died_of("ValueError")) == "all"


@pytest.mark.parametrize(
    ("policy", "given_back", "delay"),
    [
        (Policy(), 0, 1000),
        (Policy(), 3, 8000),
        (Policy(), 9, 512_000),
        (Policy(), 10**9, 512_000),
        (Policy(), -5, 1000),
        (Policy(constant("1ms")), 0, 1000),
        (Policy(never()), 2, 4000),
        (Policy(never(), rules=[rate_limited(429, backoff=constant("7s"))]), 2, 7000),
    ],
)
def test_a_rate_limit_without_a_hint_waits_by_how_often_it_was_given_back(
    policy: Policy, given_back: int, delay: int
) -> None:
    rule = "code:429" if policy.rules else "default:rate_limit"
    assert policy.limited_delay(given_back, 0.5, rule) == delay
