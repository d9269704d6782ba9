"""A policy as data: it comes back as it was, says what is wrong with it, and stands over what is below it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive.core.backoff import constant, exponential, immediate, linear, never
from redrive.core.classify import dead_on
from redrive.core.policy import Policy
from redrive.core.policy_data import describe, policy_text, read, resolve
from redrive.errors import ConfigError

POLICIES = [
    Policy(),
    Policy(exponential("2s", factor=2.5, cap="1h", jitter=0.2), max_attempts=5, max_age="7d", route="late"),
    Policy(linear("90s", "1500ms"), max_attempts=None),
    Policy(constant("1ms")),
    Policy(immediate()),
    Policy(never()),
]


@pytest.mark.parametrize("policy", POLICIES, ids=Policy.describe)
def test_a_policy_comes_back_from_its_text(policy: Policy) -> None:
    text = policy_text(policy)
    assert read(text).over(Policy(max_attempts=99, max_age="1s", route="other")) == policy
    assert policy_text(msgspec.json.decode(text)) == text


@pytest.mark.parametrize(
    ("given", "text", "told"),
    [
        ({"max_attempts": 3}, '{"max_attempts":3}', "3 attempts"),
        ({"max_attempts": None}, '{"max_attempts":null}', "any number of attempts"),
        ({"max_age": 90, "route": ""}, '{"max_age":"1m30s","route":""}', "for 1m30s, letters to no route"),
        (
            {"backoff": {"kind": "exponential", "base": 2, "cap": "1h"}},
            '{"backoff":{"kind":"exponential","base":"2s","factor":2,"cap":"1h"}}',
            "exponential 2s x2 up to 1h",
        ),
        ({"backoff": never()}, '{"backoff":{"kind":"never"}}', "never"),
        ({}, "{}", ""),
    ],
)
def test_some_numbers_of_a_policy(given: dict[str, Any], text: str, told: str) -> None:
    assert policy_text(given) == text
    assert describe(text) == told


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"max_crashes": 3}, "policy", "'max_crashes' is none of its fields"),
        ({"max_attempts": 0}, "max_attempts", "0 cannot be used"),
        ({"max_age": "soon"}, "max_age", "soon"),
        ({"route": "two words"}, "route", "two words"),
        ({"backoff": "exponential"}, "backoff", "exponential"),
        ({"backoff": {"kind": "random"}}, "backoff", "'random' is not a kind of backoff"),
        ({"backoff": {"base": "2s"}}, "backoff", "None is not a kind of backoff"),
        ({"backoff": {"kind": "constant", "base": "2s", "factor": 2}}, "backoff", "constant does not take 'factor'"),
        ({"backoff": {"kind": "linear", "step": "1s"}}, "backoff", r"linear needs base \(.* base, step, cap, jitter\)"),
        ({"backoff": {"kind": "constant"}}, "backoff", r"constant needs base \(constant takes base, jitter, cap\)"),
        ({"backoff": {"kind": "never", "base": 1}}, "backoff", "never takes no other field"),
        ({"backoff": {"kind": "linear", 3: 1}}, "backoff", "linear does not take 3"),
        ({"max_attempts": 10**23}, "max_attempts", "a whole number from 1 to 100,000,000"),
        ({"backoff": {"kind": "exponential", "jitter": 2}}, "jitter", "2 is not between 0 and 1"),
        ({"backoff": lambda number: number}, "policy", "a backoff function cannot be stored"),
        (Policy(rules=[dead_on(ValueError)]), "policy", "a policy with rules or routes cannot be stored"),
        (Policy(routes={"timeout": "slow"}), "policy", "a policy with rules or routes cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(given: Any, field: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        policy_text(given)
    assert error.value.field == field
    assert error.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"route": "x" * 5000},
        {"max_attempts": 10**400},
        {"max_attempts": -(10**5000)},
        {"backoff": "x" * 5000},
        {"backoff": {"kind": "x" * 5000}},
        {"backoff": {"kind": "linear", "x" * 5000: 1}},
        {"backoff": {"kind": "exponential", "factor": 10**400}},
        {"backoff": {"kind": "exponential", "jitter": 10**5000}},
        {"max_age": "9" * 5000},
    ],
)
def test_long_values_are_cut_in_errors(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        policy_text(given)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", ["{", '{"max_attempts": "3"}', '{"later": 1}', "{1: 2}"])
def test_a_text_that_is_no_policy_is_told(text: str) -> None:
    with pytest.raises(ConfigError):
        read(text)


def test_an_items_policy_stands_over_its_queues_and_that_over_the_handlers() -> None:
    rules = [dead_on(ValueError)]
    handler = Policy(constant("1s"), max_attempts=10, max_crashes=7, rules=rules, routes={"timeout": "slow"})
    named = {"patient": Policy(constant("1h"), max_attempts=50)}
    assert resolve(handler, named, "", "") == (handler, "")
    both, note = resolve(handler, named, '{"max_attempts":4,"route":"late"}', '{"max_attempts":2}')
    assert (both.max_attempts, both.backoff, both.max_crashes, both.rules) == (2, constant("1s"), 7, tuple(rules))
    assert (both.route, both.has_routes, note) == ("late", True, "")
    assert resolve(handler, named, '{"max_attempts":4}', "patient")[0] is named["patient"]
    assert resolve(handler, named, "patient", '{"max_attempts":2}')[0] == Policy(constant("1h"), max_attempts=2)


def test_what_is_not_known_here_is_passed_over_and_told() -> None:
    handler = Policy()
    policy, note = resolve(handler, {}, "urgent", '{"later": 1}')
    assert policy is handler
    assert note.split("; ")[::2] == ["no policy named 'urgent' here", "policy: 'later' is none of its fields"]
