"""Works off dead letters, in a loop of its own or in a group. What it cannot handle stays a dead letter."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Generic, Literal, TypeVar

from redrive.blocking.loops.lease_extender import LeaseExtender, LeaseExtenderConfig
from redrive.blocking.loops.lifecycle import Beating
from redrive.blocking.loops.stop import Stop
from redrive.engine.caller import call_blocking
from redrive.errors import MailboxClosedError, MailboxConnectionError, MailboxError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.dead_letter import DeadLetter
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.life.outage import Outage
from redrive.mailboxes.life.receiving import receive_until
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics

T = TypeVar("T")

RETRY_AFTER = 3600.0
"""Seconds until a letter whose handler failed comes again."""


class Keep(enum.Enum):
    """What a handler returns to leave a letter where it is, without an error."""

    KEEP = "keep"


KEEP: Literal[Keep.KEEP] = Keep.KEEP

Handler = Callable[[DeadLetter[T]], object]
"""Returns: the letter is acknowledged. Raises, or returns KEEP: it stays. May be an async function."""


class DLQConsumer(Beating, Generic[T]):
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
        limits.kind(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
        limits.function(handler, field="handler", hint="give one of a DeadLetter")
        limits.metrics(metrics)
        super().__init__("consumer", mailbox.clock)
        self._mailbox = mailbox
        self._handler = handler
        self._action = logs.action_of(handler)
        self._visibility = limits.working_visibility(visibility_timeout)
        self._max_messages = limits.how_many(max_messages)
        self._retry_after = limits.visibility(retry_after, field="retry_after") / 1000
        self._metrics = default_metrics() if metrics is None else metrics
        self._extender = LeaseExtender(lease_extender, clock=mailbox.clock)
        self._outage = Outage(mailbox.name)

    @property
    def name(self) -> str:
        return self._mailbox.name

    @property
    def dead_letters(self) -> tuple[Mailbox[DeadLetter[T], Any], ...]:
        return (self._mailbox,)

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = 20,
    ) -> None:
        """Runs until it is stopped, the mailbox is closed, or `max_iterations` batches were received."""
        most = limits.rounds(max_iterations)
        visibility = self._visibility if visibility_timeout is None else limits.working_visibility(visibility_timeout)
        limits.wait_time(wait_time_seconds)
        self._metrics.watch(self._mailbox)
        rounds = 0
        with self._life.running() as stop, self._life.attended(getattr(self._mailbox, "shared", None)):
            try:
                while not stop.is_set() and not self._mailbox.closed and rounds != most:
                    rounds += 1
                    self._heartbeat.beat()
                    self._round(stop, visibility, wait_time_seconds)
            finally:
                self._extender.close()

    def _round(self, stop: Stop, visibility: float, wait: float) -> None:
        try:
            batch = receive_until(
                self._mailbox,
                stop,
                max_messages=self._max_messages,
                visibility_timeout=visibility,
                wait_time_seconds=wait,
            )
        except MailboxClosedError:
            return
        except MailboxConnectionError as error:
            if not self._mailbox.closed:
                stop.wait(self._outage.goes_on(error), self._mailbox.clock)
            return
        self._outage.is_over()
        self._life.batch = batch
        with self._extender.attach(batch, self._heartbeat, visibility_timeout=visibility):
            self._work_off(batch, stop)

    def _work_off(self, batch: Sequence[Message[DeadLetter[T], Any]], stop: Stop) -> None:
        for position, message in enumerate(batch):
            if stop.is_set():
                self._give_back(batch[position:])
                return
            try:
                self._process(message)
            except BaseException:
                # The thread ends in the middle of a handler: no letter stays leased.
                self._give_back(batch[position:])
                raise
            self._heartbeat.beat()

    def _process(self, message: Message[DeadLetter[T], Any]) -> None:
        clock = self._mailbox.clock
        began = clock.monotonic()
        try:
            letter = message.body
            age = _age(letter, clock.now())
            logs.processing(
                message_id=letter.message_id, request_id=letter.request_id, age_seconds=age, action=self._action
            )
            verdict = call_blocking(self._handler, letter)
        except Exception as error:  # noqa: BLE001 - the user's handler
            logs.handler_failed(message_id=message.id, error=error)
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
        """Whether the store accepted it. If not, the letter is delivered again."""
        try:
            how()
        except MailboxError as error:
            logs.not_ended(message_id=message.id, error=error)
            return False
        return True


def safe(
    handler: Handler[T], *, discard: bool = False, metrics: MailboxMetrics | None = None
) -> Callable[[DeadLetter[T]], Keep | None]:
    """A handler that never raises. A letter that it fails on is kept; with `discard=True` it is given up, and counted.

    A consumer that gets KEEP leaves the letter where it is; other callers decide themselves.
    """
    limits.function(handler, field="handler", hint="give one of a DeadLetter")
    limits.metrics(metrics)

    @logs.with_action(logs.action_of(handler, "discard" if discard else "handle"))
    @wraps(handler)
    def guarded(letter: DeadLetter[T]) -> Keep | None:
        try:
            verdict = call_blocking(handler, letter)
        except Exception as error:  # noqa: BLE001 - the user's handler
            if not discard:
                logs.kept(message_id=letter.message_id, error=error)
                return KEEP
            logs.discarded(message_id=letter.message_id, error=error)
            counted = default_metrics() if metrics is None else metrics
            counted.discarded(letter.source_mailbox, letter.last_error_type)
            return None
        return KEEP if verdict is KEEP else None

    return guarded


def _age(letter: DeadLetter[Any], now: int) -> float:
    died = letter.dead_lettered_at
    # A letter that a user made may have a time without a zone; ours are UTC.
    aware = died if died.tzinfo is not None else died.replace(tzinfo=UTC)
    return max(0.0, (datetime.fromtimestamp(now / 1000, UTC) - aware).total_seconds())
