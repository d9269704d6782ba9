"""When a message is given up: rows M-01 to M-06, M-10, M-33, M-41 and M-42. Pure, so on no store."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from redrive.errors import BadDuration
from redrive.mailboxes import (
    AMBIGUOUS_ERRORS,
    NON_RETRIABLE_ERRORS,
    RETRIABLE_ERRORS,
    AuthenticationError,
    BudgetExceededError,
    ContentPolicyViolation,
    DeadLetter,
    DLQPolicy,
    InvalidParameterError,
    MailboxConnectionError,
    Message,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    ResourceNotFoundError,
    SerializationError,
    ValidationError,
    VisibilityExpansionRequired,
)

T = TypeVar("T")
R = TypeVar("R")


class Box:
    """As much of a mailbox as a policy needs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def send(self, body: object) -> str:
        raise NotImplementedError


BOX: Any = Box("dead")
OTHER: Any = Box("other")


def message(count: int, age: timedelta = timedelta(0)) -> Any:
    return SimpleNamespace(delivery_count=count, age=age, body="work")


def test_m01_defaults() -> None:
    policy: DLQPolicy[str, str] = DLQPolicy(mailbox=BOX)
    assert (policy.max_delivery_count, policy.include_errors, policy.exclude_errors) == (5, None, None)
    assert DLQPolicy[str, str](BOX) == policy, "also by its alias"
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_delivery_count = 6  # type: ignore[misc]


@pytest.mark.parametrize(("count", "dies"), [(4, False), (5, True), (6, True)])
def test_m02_the_threshold(count: int, dies: bool) -> None:
    assert DLQPolicy(BOX).should_dead_letter(message(count), RuntimeError("boom")) is dies


def test_m03_an_included_error_dies_at_once() -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(BOX, include_errors=frozenset({ValidationError}))
    assert policy.should_dead_letter(message(1), ValidationError("bad"))
    assert not policy.should_dead_letter(message(1), RuntimeError("boom"))


def test_m04_an_excluded_error_does_not_die() -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(BOX, exclude_errors=frozenset({RateLimitError}))
    assert not policy.should_dead_letter(message(100), RateLimitError("slow"))
    assert policy.should_dead_letter(message(100), RuntimeError("boom"))


def test_m05_of_both_sets_the_exclusion_wins() -> None:
    both = frozenset({TimeoutError})
    policy: DLQPolicy[Any, Any] = DLQPolicy(BOX, include_errors=both, exclude_errors=both)
    assert not policy.should_dead_letter(message(100), TimeoutError("late"))


@dataclass(slots=True, frozen=True)
class ErrorBudgetPolicy(DLQPolicy[T, R], Generic[T, R]):
    error_budget: float = 0.5

    def should_dead_letter(self, message: Message[T, Any], error: Exception) -> bool:
        if message.delivery_count >= self.max_delivery_count:
            return True
        return len(str(error)) / 10 > self.error_budget


def test_m06_a_policy_of_ones_own_decides() -> None:
    policy: ErrorBudgetPolicy[Any, Any] = ErrorBudgetPolicy(mailbox=BOX, max_delivery_count=10, error_budget=0.3)
    assert not policy.should_dead_letter(message(9), RuntimeError("abc"))
    assert policy.should_dead_letter(message(1), RuntimeError("abcd"))
    assert policy.should_dead_letter(message(10), RuntimeError("abc"))


def test_m10_what_is_optional_is_none_and_nothing_can_be_changed() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    letter = DeadLetter("m-1", {"any": "body"}, "requests", 5, "boom", "builtins.ValueError", at, at)
    assert (letter.request_id, letter.reply_to, letter.trace_id) == (None, None, None)
    assert (letter.first_enqueued_at, letter.attempts) == (None, ())
    with pytest.raises(dataclasses.FrozenInstanceError):
        letter.delivery_count = 6  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "dies"),
    [
        (RateLimitError("slow"), False),
        (TimeoutError("late"), False),
        (MailboxConnectionError("gone"), False),
        (VisibilityExpansionRequired(), False),
        (ValidationError("bad"), True),
        (ContentPolicyViolation("no"), True),
        (AuthenticationError("who?"), True),
        (QuotaExceededError("broke"), True),
        (ProviderError("busy"), False),
        (SerializationError("what?"), False),
        (ResourceNotFoundError("where?"), False),
    ],
)
def test_m33_the_errors_of_the_specification(error: Exception, dies: bool) -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(
        BOX, include_errors=NON_RETRIABLE_ERRORS, exclude_errors=RETRIABLE_ERRORS, max_delivery_count=3
    )
    assert policy.should_dead_letter(message(1), error) is dies
    at_the_threshold = policy.should_dead_letter(message(3), error)
    assert at_the_threshold is (dies or type(error) in AMBIGUOUS_ERRORS)


class TooManyFields(ValidationError):
    pass


def test_m41_subclasses_count_unless_exact() -> None:
    listed = frozenset({ValidationError})
    loose: DLQPolicy[Any, Any] = DLQPolicy(BOX, include_errors=listed)
    exact: DLQPolicy[Any, Any] = DLQPolicy(BOX, include_errors=listed, exact=True)
    assert loose.should_dead_letter(message(1), TooManyFields("three"))
    assert not exact.should_dead_letter(message(1), TooManyFields("three"))
    assert exact.should_dead_letter(message(1), ValidationError("bad"))


@pytest.mark.parametrize(("max_age", "ceiling"), [(None, timedelta(days=14)), ("1h", timedelta(hours=1))])
def test_m42_an_excluded_error_dies_of_age(max_age: str | None, ceiling: timedelta) -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(BOX, exclude_errors=frozenset({TimeoutError}), max_age=max_age)
    late = TimeoutError("late")
    assert not policy.should_dead_letter(message(500, ceiling - timedelta(milliseconds=1)), late)
    assert policy.should_dead_letter(message(500, ceiling), late)


def test_the_closest_kind_of_error_names_the_mailbox() -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(BOX, routes={Exception: BOX, ValidationError: OTHER})
    assert policy.mailbox_for(TooManyFields("three")) is OTHER
    assert policy.mailbox_for(RuntimeError("boom")) is BOX
    assert policy.mailbox_for(None) is BOX
    assert policy.mailboxes == (BOX, OTHER)
    exact: DLQPolicy[Any, Any] = DLQPolicy(BOX, routes={ValidationError: OTHER}, exact=True)
    assert exact.mailbox_for(TooManyFields("three")) is BOX


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"mailbox": "requests-dlq"}, "mailbox"),
        ({"max_delivery_count": 0}, "max_delivery_count"),
        ({"max_delivery_count": True}, "max_delivery_count"),
        ({"include_errors": ValidationError}, "include_errors"),
        ({"exclude_errors": {"TimeoutError"}}, "exclude_errors"),
        ({"routes": {"TimeoutError": BOX}}, "routes"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{field}: "):
        DLQPolicy(**{"mailbox": BOX, **wrong})


def test_an_age_that_is_none_is_refused() -> None:
    with pytest.raises(BadDuration, match=r"^max_age: "):
        DLQPolicy(BOX, max_age="soon")


def test_a_message_of_another_mailbox_has_the_age_of_its_sending() -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(BOX, exclude_errors=frozenset({TimeoutError}), max_age="1h")
    sent: Any = SimpleNamespace(delivery_count=9, enqueued_at=datetime.now(UTC) - timedelta(hours=2))
    assert policy.should_dead_letter(sent, TimeoutError("late"))
    unknown: Any = SimpleNamespace(delivery_count=9)
    assert not policy.should_dead_letter(unknown, TimeoutError("late"))


def test_errors_carry_what_they_know() -> None:
    assert RateLimitError("slow", retry_after=12).retry_after == 12
    spent = BudgetExceededError("too much", what="max_total_tokens", used=9, limit=5)
    assert (spent.what, spent.used, spent.limit) == ("max_total_tokens", 9, 5)
    needed = VisibilityExpansionRequired(requested_overrides={"notes": "full"}, section_keys=["notes"], reason="asked")
    assert (needed.requested_overrides, needed.section_keys) == ({"notes": "full"}, ("notes",))
