"""Consumer of dead letters, in a loop of its own or in a group. What it cannot handle stays a dead letter."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, TypeVar

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.core.item import Instant
from redrive.core.validation import check_function, check_type
from redrive.engine.caller import call_blocking
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter, instant
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.mailboxes.receive_loop import MailboxLoop
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
        visibility = self._visibility if visibility_timeout is None else visibility_timeout
        self._run(max_iterations, visibility, wait_time_seconds)

    def _process(self, message: Message[DeadLetter[T], Any]) -> bool:
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
            self._settled(message, lambda: message.nack(self._retry_after))
            return True
        if verdict is KEEP:
            self._settled(message, lambda: message.nack(self._retry_after))
        elif self._settled(message, message.acknowledge):
            took = clock.monotonic() - began
            self._metrics.processed(
                letter.source_mailbox, letter.last_error_type, age_seconds=age, duration_ms=float(took)
            )
        return True

    def _release(self, message: Message[DeadLetter[T], Any]) -> None:
        self._settled(message, lambda: message.nack(0))


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


def _age(letter: DeadLetter[Any], now: Instant) -> float:
    return max(0, now - instant(letter.dead_lettered_at)) / 1000
