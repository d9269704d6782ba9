"""Consumer of dead letters, in a loop of its own or in a group. What it cannot handle stays a dead letter."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from datetime import UTC
from functools import wraps
from typing import Any, Literal, TypeVar

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.core.instants import moment
from redrive.core.validation import check_function, check_type
from redrive.engine.caller import call_blocking
from redrive.errors import MailboxClosedError, MailboxConnectionError, MailboxError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.life.receiving import MailboxLoop
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.mailboxes.validation import check_max_messages, check_metrics, check_visibility

T = TypeVar("T")

RETRY_AFTER = 3600.0
"""Seconds until a letter whose handler failed comes again."""


class Keep(enum.Enum):
    """What a handler returns to leave a letter where it is, without an error."""

    KEEP = "keep"


KEEP: Literal[Keep.KEEP] = Keep.KEEP

Handler = Callable[[DeadLetter[T]], object]
"""Returns: the letter is acknowledged. Raises, or returns KEEP: it stays. May be an async function."""


class DLQConsumer(MailboxLoop[DeadLetter[T], Any]):
    """Gives each dead letter to the handler. One that fails is logged and comes again in `retry_after` seconds.

    A letter is never dead-lettered again. At a shutdown the handler ends its letter, and the rest of the batch is
    given back.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox[DeadLetter[T], Any],
        handler: Handler[T],
        visibility_timeout: float = 300,
        max_messages: int = 1,
        retry_after: float = RETRY_AFTER,
        metrics: MailboxMetrics | None = None,
        lease_extender: LeaseExtenderConfig | None = None,
    ) -> None:
        check_type(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
        check_function(handler, field="handler", hint="give one of a DeadLetter")
        check_visibility(visibility_timeout, least=1)
        most = check_max_messages(max_messages)
        super().__init__("consumer", mailbox, metrics, max_messages=most, lease_extender=lease_extender)
        self._handler = handler
        self._action = logs.action_of(handler)
        self._visibility = visibility_timeout
        self._retry_after = check_visibility(retry_after, field="retry_after") / 1000

    @property
    def dead_letters(self) -> tuple[Mailbox[DeadLetter[T], Any], ...]:
        return (self._requests,)

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = 20,
    ) -> None:
        """Runs until it is stopped, the mailbox is closed, or `max_iterations` batches were received."""
        self._repeat(
            max_iterations, self._visibility if visibility_timeout is None else visibility_timeout, wait_time_seconds
        )

    def _round(self, visibility: float, wait: float) -> None:
        try:
            self._life.batch = batch = self._receive(visibility, wait)
        except MailboxClosedError:
            return
        except MailboxConnectionError as error:
            if not self._requests.closed:
                self._stop.wait(self._outage.goes_on(error), self._clock)
            return
        self._outage.is_over()
        with self._extender.attach(batch, self._heartbeat, visibility_timeout=visibility):
            for position, message in enumerate(batch):
                if self._stop.is_set():
                    self._give_back(batch[position:])
                    return
                try:
                    self._process(message)
                except BaseException:
                    # The thread ends in the middle of a handler: no letter stays invisible.
                    self._give_back(batch[position:])
                    raise
                self._heartbeat.beat()

    def _process(self, message: Message[DeadLetter[T], Any]) -> None:
        clock = self._clock
        began = clock.monotonic()
        try:
            letter = message.body
            age = _age(letter, clock.now())
            logs.log(
                logging.INFO,
                "Processing dead letter",
                message_id=letter.message_id,
                request_id=letter.request_id,
                age_seconds=age,
                action=self._action,
            )
            verdict = call_blocking(self._handler, letter)
        except Exception as error:  # noqa: BLE001 - the user's handler
            logs.failed("DLQ handler failed", message.id, error)
            self._end(message, lambda: message.nack(self._retry_after))
            return
        if verdict is KEEP:
            self._end(message, lambda: message.nack(self._retry_after))
        elif self._end(message, message.acknowledge):
            took = clock.monotonic() - began
            self._metrics.processed(
                letter.source_mailbox, letter.last_error_type, age_seconds=age, duration_ms=float(took)
            )

    def _give_back(self, rest: Sequence[Message[DeadLetter[T], Any]]) -> None:
        for message in rest:
            if not message.is_finalized:
                self._end(message, lambda message=message: message.nack(0))  # type: ignore[misc]

    def _end(self, message: Message[DeadLetter[T], Any], how: Callable[[], None]) -> bool:
        """Whether it counted. If not, the letter comes again, here or to its next receiver."""
        try:
            how()
        except MailboxError as error:
            logs.not_settled(message.id, error)
            return False
        return True


def safe(
    handler: Handler[T], *, discard: bool = False, metrics: MailboxMetrics | None = None
) -> Callable[[DeadLetter[T]], Keep | None]:
    """A handler that never raises. A letter that it fails on is kept; with `discard=True` it is given up, and counted.

    A consumer that gets KEEP leaves the letter where it is; other callers decide themselves.
    """
    check_function(handler, field="handler", hint="give one of a DeadLetter")
    check_metrics(metrics)

    @logs.with_action(logs.action_of(handler, "discard" if discard else "handle"))
    @wraps(handler)
    def guarded(letter: DeadLetter[T]) -> Keep | None:
        try:
            verdict = call_blocking(handler, letter)
        except Exception as error:  # noqa: BLE001 - the user's handler
            if not discard:
                logs.failed("Failed to process dead letter, keeping it", letter.message_id, error)
                return KEEP
            logs.failed("Failed to process dead letter, discarding", letter.message_id, error)
            counted = default_metrics() if metrics is None else metrics
            counted.discarded(letter.source_mailbox, letter.last_error_type)
            return None
        return KEEP if verdict is KEEP else None

    return guarded


def _age(letter: DeadLetter[Any], now: int) -> float:
    died = letter.dead_lettered_at
    # A letter that a user made may have a time without a zone; ours are UTC.
    aware = died if died.tzinfo is not None else died.replace(tzinfo=UTC)
    return max(0.0, (moment(now) - aware).total_seconds())
