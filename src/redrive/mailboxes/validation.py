"""Checks of arguments that only mailboxes have; all others are in redrive.core.validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from redrive.core.item import Millis, Priority
from redrive.core.quantity import shown
from redrive.core.validation import check_count, check_has, check_seconds
from redrive.engine.client import check_id
from redrive.engine.registry import check_queue_name, user_queue_name
from redrive.errors import ConfigError, InvalidParameterError

A = TypeVar("A")

LONGEST_VISIBILITY = 43_200
MAX_MESSAGES = 10
OPEN_MAILBOX = "use open_mailbox"


def check_resolver(given: object, method: str, *, field: str = "resolver") -> None:
    if given is not None:
        check_has(given, method, field=field, hint="use MailboxResolver")


def check_metrics(given: object) -> None:
    if given is not None:
        check_has(given, "sent", "watch", field="metrics", hint="leave it out, or use MailboxMetrics()")


def check_visibility(seconds: float, *, field: str = "visibility_timeout", least: float = 0) -> Millis:
    return check_seconds(seconds, field=field, least=least, most=LONGEST_VISIBILITY)


def check_times(visibility_timeout: float, wait_time_seconds: float) -> None:
    """Of a loop: a message that it receives for less than a second would come again while it is processed."""
    check_visibility(visibility_timeout, least=1)
    check_seconds(wait_time_seconds, field="wait_time_seconds")


def check_rounds(count: int | None) -> int | None:
    hint = "use 0 or more, or None to run until it is stopped"
    return None if count is None else check_count(count, field="max_iterations", least=0, hint=hint)


def check_max_messages(count: object) -> int:
    """At least 1, at most 10, whatever number was given."""
    if not isinstance(count, int) or isinstance(count, bool):
        message = f"must be a whole number, got {shown(count)}"
        raise InvalidParameterError(message, field="max_messages", hint="use 1 to 10")
    return max(1, min(count, MAX_MESSAGES))


def check_attributes(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        hint = "give strings by name, as {'tenant': 'acme'}"
        raise InvalidParameterError(f"must map str to str, got {shown(given)}", field="attributes", hint=hint)
    try:
        "".join([one for pair in given.items() for one in pair]).encode()
    except UnicodeEncodeError:
        message = f"must be valid UTF-8, got unpaired surrogates in {shown(given)}"
        raise InvalidParameterError(message, field="attributes", hint="use valid Unicode strings") from None
    return dict(given)


def as_parameter(check: Callable[[object], A], given: object, field: str = "", what: str = "") -> A:
    """Run a check that raises ConfigError, and raise InvalidParameterError instead. `what` replaces its noun."""
    try:
        return check(given)
    except ConfigError as error:
        message = f"must be {what}, got {shown(given)}" if what else error.message.removeprefix(f"{error.field}: ")
        raise InvalidParameterError(message, field=field or error.field, hint=error.hint) from None


def check_name(given: object, *, field: str = "name") -> str:
    """Outbox queues are refused: what they hold is delivered to their targets."""
    name = as_parameter(check_queue_name, given, field, "the name of a mailbox")
    return as_parameter(user_queue_name, name, field)


def check_message_id(given: object) -> str:
    return as_parameter(check_id, given, "message_id", "the id of a message")


def check_priority(given: str) -> Priority:
    try:
        return Priority(given)
    except ValueError:
        hint = f"use one of {', '.join(Priority)}"
        raise InvalidParameterError(f"must be a priority, got {shown(given)}", field="priority", hint=hint) from None
