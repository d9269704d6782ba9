"""What a dead-letter mailbox gives: the message as it was sent, and what is known of how it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from redrive.core.instants import moment
from redrive.core.item import Attempt, Failure, History, Instant

T = TypeVar("T")

CAUSED = "\ncaused by "
"""What evidence puts between an error and the one it came from."""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """One delivery that ended, as the history has it. `ending` is a word such as failed, crashed or released."""

    number: int
    worker: str
    started_at: datetime
    ran_seconds: float
    ending: str
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class DeadLetter(Generic[T]):
    """A message that could not be processed, with its failure. All times are UTC.

    `first_received_at` is the first delivery and `first_enqueued_at` when it was sent; `attempts` are the deliveries
    that ended, from the first to the last (of very many, those in the middle are left out). The body is bytes if it
    could not be decoded.
    """

    message_id: str
    body: T
    source_mailbox: str
    delivery_count: int
    last_error: str
    last_error_type: str
    dead_lettered_at: datetime
    first_received_at: datetime
    request_id: UUID | None = None
    reply_to: str | None = None
    trace_id: str | None = None
    first_enqueued_at: datetime | None = None
    attempts: tuple[PastAttempt, ...] = ()


def dead_letter_of(
    history: History, body: T, *, reply_to: str | None = None, attributes: Mapping[str, str] | None = None
) -> DeadLetter[T]:
    """A letter of the store as what mailboxes speak of."""
    item, letter = history.item, history.item.letter
    if letter is None:
        raise ValueError(f"{item.id} is no letter")
    first = history.attempts[0].started_at if history.attempts else letter.died_at
    return DeadLetter(
        message_id=item.id,
        body=body,
        source_mailbox=item.queue,
        delivery_count=item.attempt,
        last_error=error_text(letter.failure),
        last_error_type=error_type(letter.failure),
        dead_lettered_at=moment(letter.died_at),
        first_received_at=moment(first),
        request_id=request_id_of(body),
        reply_to=reply_to,
        trace_id=trace_id_of(body, attributes),
        first_enqueued_at=moment(item.enqueued_at),
        attempts=tuple(_past(attempt) for attempt in history.attempts),
    )


def _past(attempt: Attempt) -> PastAttempt:
    failure = attempt.failure
    return PastAttempt(
        number=attempt.number,
        worker=attempt.worker,
        started_at=moment(attempt.started_at),
        ran_seconds=attempt.ran / 1000,
        ending=str(attempt.ending),
        error_type=None if failure is None else error_type(failure),
        error=None if failure is None else error_text(failure),
    )


def error_type(failure: Failure) -> str:
    """With its module, also where evidence leaves out that of Python's own errors."""
    return failure.type if "." in failure.type else f"builtins.{failure.type}"


def error_text(failure: Failure) -> str:
    """The error's own words, without those of what caused it."""
    return failure.text.partition(CAUSED)[0]


def instant(at: datetime) -> Instant:
    """A time without a zone, of a letter that a user made, is taken for UTC."""
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def request_id_of(body: object) -> UUID | None:
    """Of a request envelope; a body that was not given a type is plain data, and its ids are texts."""
    value = field_of(body, "request_id")
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            return None
    return value if isinstance(value, UUID) else None


def trace_id_of(body: object, attributes: Mapping[str, str] | None = None) -> str | None:
    """Of the request's run context, else of the message's attributes."""
    value = field_of(field_of(body, "run_context"), "trace_id")
    return value if isinstance(value, str) and value else (attributes or {}).get("trace_id")


def field_of(holder: object, name: str) -> Any:
    """An attribute or key of an object of any type; None if it has none, or a property raises."""
    try:
        return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - the object is the user's
        return None
