"""Dead-letter policy: when a failed message is given up, why, and which mailbox gets it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.item import Failure, Item
from redrive.core.validation import check_count, check_errors, check_has, check_optional
from redrive.engine.evidence import plain_failure
from redrive.engine.forks import parent_only
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message, StoreMessage
from redrive.mailboxes.errors import BudgetExceededError, DeadlineExceededError
from redrive.mailboxes.validation import OPEN_MAILBOX

T = TypeVar("T")
R = TypeVar("R")

MAX_AGE = timedelta(days=14)
"""How long excluded errors are tried where the policy does not say."""

Errors = frozenset[type[Exception]]
AnyMessage = Message[Any, Any]


@dataclass(frozen=True)
class DLQPolicy(Generic[T, R]):
    """Where dead letters go, and when a failed message is one. Subclass it to decide otherwise.

    `include_errors` make a dead letter at once; `exclude_errors` never do, until the message is older than `max_age`
    (14 days if not given): an error that never goes away must not be tried for ever. An error in both is excluded.
    Every other error makes a dead letter at delivery `max_delivery_count`. Subclasses of a listed error count as
    listed, unless `exact`.

    `routes`: other mailboxes for some kinds of error, the closest kind in the error's ancestry first; all others go to
    `mailbox`.

    Lost workers count with the errors: a message that comes back from one, and has used up `max_delivery_count`
    deliveries, is dead-lettered without being tried again. Excluded errors and releases by a loop do not count;
    `message.nack()` by hand does.
    """

    mailbox: Mailbox[DeadLetter[T], None]
    max_delivery_count: int = 5
    include_errors: Errors | None = None
    exclude_errors: Errors | None = None
    exact: bool = False
    max_age: Duration | None = None
    routes: Mapping[type[Exception], Mailbox[DeadLetter[T], None]] | None = None

    def __post_init__(self) -> None:
        check_optional(routes=(self.routes, Mapping, "give mailboxes by class of error"))
        for one in self.mailboxes:
            check_has(one, "send", field="mailbox", hint=OPEN_MAILBOX)
        check_count(self.max_delivery_count, field="max_delivery_count")
        for field in ("include_errors", "exclude_errors", "routes"):
            check_errors(getattr(self, field), field=field)
        if self.max_age is not None:
            durations.parse(self.max_age, field="max_age")

    def should_dead_letter(self, message: Message[T, Any], error: Exception) -> bool:
        """True to make a dead letter of it, False to try again after a backoff."""
        if self.lists(self.exclude_errors, error):
            return age_of(message) >= self._ceiling()
        if self.lists(self.include_errors, error):
            return True
        return message.delivery_count >= self.max_delivery_count

    def mailbox_for(self, error: Exception | None) -> Mailbox[DeadLetter[T], None]:
        """Which dead-letter mailbox gets a message that failed with this error; None for one that raised nothing."""
        if self.routes and error is not None:
            kinds = (type(error),) if self.exact else type(error).__mro__
            for kind in kinds:
                if kind in self.routes:
                    return self.routes[kind]
        return self.mailbox

    @property
    def mailboxes(self) -> tuple[Mailbox[DeadLetter[T], None], ...]:
        """All that this policy sends to, each once."""
        found = [self.mailbox]
        for one in (self.routes or {}).values():
            if all(one is not other for other in found):
                found.append(one)
        return tuple(found)

    def lists(self, errors: Errors | None, error: BaseException) -> bool:
        """Whether the error is among these, by the rules of this policy."""
        if not errors:
            return False
        return type(error) in errors if self.exact else isinstance(error, tuple(errors))

    def _ceiling(self) -> timedelta:
        if self.max_age is None:
            return MAX_AGE
        return timedelta(milliseconds=durations.parse(self.max_age, field="max_age"))


def age_of(message: Message[Any, Any]) -> timedelta:
    """Since it was sent or last replayed. A message of a user's own mailbox class may only have the time of sending."""
    age = getattr(message, "age", None)
    if isinstance(age, timedelta):
        return age
    sent = getattr(message, "enqueued_at", None)
    return datetime.now(UTC) - sent if isinstance(sent, datetime) else timedelta(0)


Policy = DLQPolicy[Any, Any]
DELIVERIES = 5
"""How many deliveries may be lost with their worker where there is no policy."""


def verdict(policy: Policy | None, message: AnyMessage, error: BaseException) -> str | None:
    """Why it is given up, or None if it is to be tried again.

    What is out of time or budget stays so: no policy is asked. Without a policy the first failure is the last.
    """
    if isinstance(error, DeadlineExceededError):
        return "deadline"
    if isinstance(error, BudgetExceededError):
        return "budget"
    if policy is None:
        return "no_retry"
    if (item := item_of(message)) is not None and item.last_chance:
        return "last_chance"
    return _reason(policy, error) if _dies(policy, message, error) else None


def mailbox_of(policy: Policy | None, message: AnyMessage, error: BaseException | Failure) -> Mailbox[Any, Any] | None:
    """The mailbox for its letter; None if there is no policy: then it is a letter all the same, of no route."""
    if policy is None:
        return None
    try:
        return policy.mailbox_for(error if isinstance(error, Exception) else None)
    except Exception as broken:  # noqa: BLE001 - the user's own policy
        text = "Policy failed, the letter goes to its first mailbox"
        logs.log(logging.ERROR, text, message_id=message.id, mailbox=policy.mailbox.name, error=broken)
        return policy.mailbox


def lost_too_often(policy: Policy | None, message: AnyMessage) -> Failure | None:
    """The failure of a message whose workers were lost too often; None if it may be tried.

    Lost deliveries count, and errors with them: not those that are excluded, and not where a policy of the user's own
    says how many there may be.
    """
    allowed = DELIVERIES if policy is None else policy.max_delivery_count
    item, plain = item_of(message), policy is None or _is_plain(policy)
    errors = 0
    if item is not None:
        lost = item.crashes
        errors = item.errors if lost and plain and policy is not None else 0
    else:
        # A user's own mailbox class counts deliveries alone: where every error ends at the limit, the rest was lost.
        lost = message.delivery_count - 1 if plain and not (policy and policy.exclude_errors) else 0
    if lost + errors < allowed:
        return None
    which = f"{lost} of {lost + errors} deliveries, the others failed" if errors else f"each of {lost} deliveries"
    text = f"lease expired on {which}: the receiver was lost"
    key = f"lease expired in {'' if item is None else item.queue}"
    return plain_failure("redrive.LeaseExpired", text, "crash", key=key)


def item_of(message: AnyMessage) -> Item | None:
    return message.item if isinstance(message, StoreMessage) else None


def is_suspect(message: AnyMessage) -> bool:
    """Whether a worker was lost with it."""
    item = item_of(message)
    return item is not None and item.crashes > 0


def is_letter(message: AnyMessage) -> bool:
    """Whether it is a dead letter, received from the mailbox of its route."""
    item = item_of(message)
    return item is not None and item.letter is not None


def is_excluded(policy: Policy | None, error: BaseException) -> bool:
    """Whether the error costs no delivery: it is tried again until the message is too old."""
    return policy is not None and _is_plain(policy) and policy.lists(policy.exclude_errors, error)


def _dies(policy: Policy, message: AnyMessage, error: BaseException) -> bool:
    try:
        with parent_only():
            return bool(policy.should_dead_letter(message, error))  # type: ignore[arg-type]  # SystemExit is asked about, too
    except Exception as broken:  # noqa: BLE001 - the user's own policy
        logs.log(logging.ERROR, "Policy failed, its threshold decides", message_id=message.id, error=broken)
        return message.delivery_count >= policy.max_delivery_count


def _reason(policy: Policy, error: BaseException) -> str:
    if not _is_plain(policy):
        return "policy"
    if policy.lists(policy.exclude_errors, error):
        return "max_age"
    return "rule" if policy.lists(policy.include_errors, error) else "max_attempts"


def _is_plain(policy: Policy) -> bool:
    return type(policy).should_dead_letter is DLQPolicy.should_dead_letter
