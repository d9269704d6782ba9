"""When a failed message is given up, and which mailbox gets it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes import limits

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.dead_letter import DeadLetter
    from redrive.mailboxes.boxes.mailbox import Mailbox
    from redrive.mailboxes.boxes.message import Message

T = TypeVar("T")
R = TypeVar("R")

MAX_AGE = timedelta(days=14)
"""How long excluded errors are tried where the policy does not say."""

Errors = frozenset[type[Exception]]


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
    deliveries, is dead-lettered without being tried again. Excluded errors and releases do not count.
    """

    mailbox: Mailbox[DeadLetter[T], None]
    max_delivery_count: int = 5
    include_errors: Errors | None = None
    exclude_errors: Errors | None = None
    exact: bool = False
    max_age: Duration | None = None
    routes: Mapping[type[Exception], Mailbox[DeadLetter[T], None]] | None = None

    def __post_init__(self) -> None:
        if self.routes is not None:
            limits.kind(self.routes, Mapping, field="routes", hint="give mailboxes by class of error")
        for one in self.mailboxes:
            if not hasattr(one, "send"):
                raise InvalidParameterError(f"{shown(one)} is no mailbox", field="mailbox", hint="use open_mailbox")
        count: object = self.max_delivery_count
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            hint = "use a whole number of at least 1"
            raise InvalidParameterError(f"{shown(count)} cannot be used", field="max_delivery_count", hint=hint)
        for field in ("include_errors", "exclude_errors", "routes"):
            _check_errors(field, getattr(self, field))
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


def _check_errors(field: str, errors: object) -> None:
    if errors is None:
        return
    hint = "give exception classes, such as frozenset({TimeoutError})"
    if isinstance(errors, str) or not isinstance(errors, Collection):
        raise InvalidParameterError(f"{shown(errors)} is no set of errors", field=field, hint=hint)
    for kind in errors:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidParameterError(f"{shown(kind)} is no exception class", field=field, hint=hint)
