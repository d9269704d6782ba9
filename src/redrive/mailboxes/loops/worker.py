"""The base of all loops: receive messages, work on one after the other, and settle each.

Store calls are retried without limit, so that work which was done is not lost because the store is away for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

from redrive.core import outcome as o
from redrive.core.generics import given_for
from redrive.core.item import Failure
from redrive.core.validation import check_optional, check_type
from redrive.engine.caller import one_loop
from redrive.engine.evidence import hint_of
from redrive.engine.forks import parent_only
from redrive.engine.runner import received
from redrive.errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxError,
    SerializationError,
)
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter, request_id_of
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.message import Message, StoreMessage
from redrive.mailboxes.loops.config import MainLoopConfig
from redrive.mailboxes.loops.outbox import LoopOutbox, shares_store
from redrive.mailboxes.loops.policy import (
    DLQPolicy,
    is_excluded,
    is_letter,
    is_suspect,
    item_of,
    lost_too_often,
    mailbox_of,
    verdict,
)
from redrive.mailboxes.loops.settling import DeadLetterReason, Settler, StoreSettler, failure_from
from redrive.mailboxes.metrics import MailboxMetrics
from redrive.mailboxes.receive_loop import MailboxLoop
from redrive.mailboxes.validation import LONGEST_VISIBILITY

BodyT = TypeVar("BodyT")
ReplyT = TypeVar("ReplyT")


class MailboxWorker(MailboxLoop[BodyT, ReplyT]):
    """A loop over one mailbox. Subclasses say what the work is, and what is answered when it is given up."""

    _what = "loop"

    def __init__(
        self,
        *,
        requests: Mailbox[BodyT, ReplyT],
        config: MainLoopConfig | None,
        dlq: DLQPolicy[BodyT, ReplyT] | None,
        metrics: MailboxMetrics | None,
    ) -> None:
        check_type(requests, Mailbox, field="requests", hint="use open_mailbox")
        check_optional(config=(config, MainLoopConfig, "use MainLoopConfig"), dlq=(dlq, DLQPolicy, "use DLQPolicy"))
        config = MainLoopConfig() if config is None else config
        extender = config.lease_extender
        super().__init__(self._what, requests, metrics, max_messages=config.max_messages, lease_extender=extender)
        self._config = config
        self._dlq = dlq
        self._ends = Settler(requests)
        self._outbox: LoopOutbox | None = None
        if isinstance(requests, StoreMailbox):
            self._ends = StoreSettler(requests)
            self._outbox = LoopOutbox(requests, self.dead_letters, self._reply_type)
        self._worker_id = f"{socket.gethostname()}-{os.getpid()}"
        for mailbox in self.dead_letters:
            if mailbox.name == requests.name and self._shares_store(mailbox):
                text = f"dead letters of {requests.name!r} would come back as requests"
                raise InvalidParameterError(text, field="dlq", hint=f"use another mailbox, such as {requests.name}-dlq")
            mailbox.mark_dead_letters()
        self._bind(late=False)

    @abstractmethod
    def _work(self, message: Message[BodyT, ReplyT]) -> ReplyT:
        """Raises whatever went wrong."""

    @abstractmethod
    def _gave_up(self, body: BodyT | None, raw: bytes, text: str) -> ReplyT:
        """What is answered; the body is None if it could not be read."""

    @abstractmethod
    def _body_type(self) -> Any:
        """The type of requests, by the loop's generic arguments."""

    @abstractmethod
    def _reply_type(self) -> Any: ...

    @property
    def dead_letters(self) -> tuple[Mailbox[DeadLetter[BodyT], Any], ...]:
        return () if self._dlq is None else self._dlq.mailboxes

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Until `shutdown`, the mailbox is closed, or it has received `max_iterations` times."""
        self._bind(late=True)
        self._run(max_iterations, visibility_timeout, wait_time_seconds)

    @contextmanager
    def _around(self) -> Iterator[None]:
        outbox = nullcontext() if self._outbox is None else self._outbox.running()
        with one_loop(), outbox, super()._around():
            self._announce()
            yield

    # --- one round --------------------------------------------------------------------------------------------------

    def _bind(self, *, late: bool) -> None:
        """Bind the mailboxes to their body types: for a subclass at once, for `MainLoop[A, B](...)` when it runs."""
        if late or not getattr(type(self), "__parameters__", ()):
            kind = self._body_type()
            self._requests.bind(kind)
            for mailbox in self.dead_letters:
                mailbox.bind(given_for(DeadLetter, kind))

    def _announce(self) -> None:
        """Declare the dead-letter mailboxes of our store there, with the room they have."""
        if self._requests.closed:
            return
        try:
            for mailbox in self.dead_letters:
                if isinstance(mailbox, StoreMailbox) and self._shares_store(mailbox):
                    self._until_answered(partial(mailbox.call, mailbox.prepare), None)
        except MailboxClosedError:
            # Closed by another thread, or with the process, before the first round.
            if not self._requests.closed:
                raise

    def _round(self, visibility: float, wait: float) -> None:
        self._deliver()
        nothing: Sequence[Message[BodyT, ReplyT]] = ()
        batch = self._until_answered(partial(self._receive, visibility, wait), nothing)
        self._process_batch(sorted(batch, key=is_suspect), visibility)

    def _release(self, message: Message[BodyT, ReplyT]) -> None:
        self._settled(message, lambda: self._ends.release(message))

    # --- one message ------------------------------------------------------------------------------------------------

    def _process(self, message: Message[BodyT, ReplyT]) -> bool:
        suspect = is_suspect(message)
        if suspect:
            # It may crash this process: then no other message shall be counted as lost.
            self._give_back([each for each in self._life.batch if each is not message])
        try:
            self._work_on(message)
        except MailboxClosedError as error:
            # Not given back: the mailbox that is closed may be that of the dead letters.
            logs.not_settled(message.id, error)
            return False
        self._deliver()
        return not suspect

    def _work_on(self, message: Message[BodyT, ReplyT]) -> None:
        lost = lost_too_often(self._dlq, message)
        if lost is not None:
            self._give_up(message, DeadLetterReason("max_crashes", lost, self._backoff(message), counted=False))
            return
        try:
            message.body  # noqa: B018 - it is decoded when it is asked for
        except SerializationError as error:
            self._unreadable(message, error)
            return
        try:
            with parent_only(), _in_hand(message):
                reply = self._work(message)
            ended = self._until_answered(lambda: self._ends.finish(message, reply), None)
        except KeyboardInterrupt:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the user's work
            self._failed(message, error)
        except BaseException as error:
            # An exit in the middle of the work is a failure of it, or it would be tried for ever.
            self._failed(message, error)
            raise
        else:
            self._log_lost(message, ended=ended)
            self._note(message)

    def _unreadable(self, message: Message[BodyT, ReplyT], error: SerializationError) -> None:
        """No try will read it, unless the policy expects that one does: by a newer version of the program."""
        if self._dlq is not None and self._dlq.lists(self._dlq.exclude_errors, error):
            self._failed(message, error)
        else:
            self._give_up(message, DeadLetterReason("payload", error, self._backoff(message)))

    def _failed(self, message: Message[BodyT, ReplyT], error: BaseException) -> None:
        if isinstance(message, StoreMessage) and message.asked:
            cancelled = o.Cancelled(message.asked, failure_from(error))
            self._log_lost(message, ended=self._until_answered(lambda: message.settle(cancelled) is not None, None))
            return
        reason = verdict(self._dlq, message, error)
        if reason is not None:
            self._give_up(message, DeadLetterReason(reason, error, self._backoff(message)))
            return
        free = is_excluded(self._dlq, error)
        hint = hint_of(error, self._clock.now())
        delay = self._backoff(message, free=free) if hint is None else min(hint / 1000, LONGEST_VISIBILITY)
        self._retry("Message failed", message, error, delay, free=free)

    def _retry(
        self,
        text: str,
        message: Message[BodyT, ReplyT],
        error: BaseException | Failure,
        delay: float,
        *,
        free: bool = False,
    ) -> None:
        why = DeadLetterReason("", error, delay)
        logs.log(
            logging.WARNING,
            text,
            message_id=message.id,
            source_mailbox=self._requests.name,
            delivery_count=message.delivery_count,
            error_type=why.error_type,
            error_message=why.text,
            retry_in_seconds=delay,
        )
        self._log_lost(
            message, ended=self._until_answered(lambda: self._ends.retry(message, delay, error, free=free), None)
        )

    def _give_up(self, message: Message[BodyT, ReplyT], why: DeadLetterReason) -> None:
        """One write: the letter, the end of the message, and the answer that says so."""
        if is_letter(message):
            # A dead letter that fails again is the letter that it was, and is received again after the backoff.
            self._retry("Dead letter failed again", message, why.error, why.retry_delay)
            return
        target = mailbox_of(self._dlq, message, why.error)
        if target is not None and not self._has_room(target):
            kept = self._until_answered(lambda: self._ends.retry(message, why.retry_delay, why.error), None)
            outcome = None if kept is None else "full" if kept else "lost"
        else:
            reply = self._terminal(message, why)
            outcome = self._until_answered(lambda: self._ends.dead_letter(message, why, target, reply), None)
        match outcome:
            case "dead":
                self._dead_lettered(message, why, target)
            case "full":
                name = "" if target is None else target.name
                self._metrics.refused(self._requests.name, why.error_type)
                logs.log(
                    logging.CRITICAL,
                    "Dead letter mailbox full",
                    mailbox=name,
                    message_id=message.id,
                    source_mailbox=self._requests.name,
                    retry_in_seconds=why.retry_delay,
                )
            case _:
                self._log_lost(message, ended=None if outcome is None else False)

    def _terminal(self, message: Message[BodyT, ReplyT], why: DeadLetterReason) -> ReplyT | None:
        if message.reply_to_name is None:
            return None
        text = why.text
        if self._dlq is not None:
            deliveries = message.delivery_count - (not why.counted)
            text = f"Dead-lettered after {deliveries} attempts: {text}"
        return self._gave_up(_body_of(message), message.raw, text)

    def _dead_lettered(
        self, message: Message[BodyT, ReplyT], why: DeadLetterReason, target: Mailbox[DeadLetter[BodyT], Any] | None
    ) -> None:
        self._metrics.sent(self._requests.name, why.error_type)
        logs.log(
            logging.WARNING,
            "Message dead-lettered",
            message_id=message.id,
            request_id=request_id_of(_body_of(message)),
            source_mailbox=self._requests.name,
            delivery_count=message.delivery_count - (not why.counted),
            error_type=why.error_type,
            error_message=why.text,
        )
        self._note(message, target)

    # --- other stores -----------------------------------------------------------------------------------------------

    def _shares_store(self, mailbox: Mailbox[Any, Any]) -> bool:
        return isinstance(self._requests, StoreMailbox) and shares_store(self._requests.shared, mailbox)

    def _has_room(self, mailbox: Mailbox[Any, Any]) -> bool:
        """Whether another store takes one more letter. On our own store the write itself checks."""
        room = getattr(mailbox, "max_size", None)
        if room is None or self._shares_store(mailbox):
            return True
        try:
            return mailbox.approximate_count() < int(room)
        except MailboxError:
            return True  # it cannot be asked now: the letter waits in the outbox

    def _deliver(self) -> None:
        if self._outbox is not None:
            self._outbox.run()

    def _note(self, message: Message[BodyT, ReplyT], letters: Mailbox[Any, Any] | None = None) -> None:
        if self._outbox is not None:
            self._outbox.note(message, letters)

    def _backoff(self, message: Message[BodyT, ReplyT], *, free: bool = False) -> float:
        """`free`: the delivery is not counted, so all of them are."""
        item = item_of(message)
        return self._config.backoff(item.deliveries if free and item is not None else message.delivery_count)

    def _log_lost(self, message: Message[BodyT, ReplyT], *, ended: bool | None) -> None:
        """Log an end that did not count. None: unknown, the store did not answer."""
        if ended is False:
            logs.log(logging.WARNING, "Message lost to another receiver", message_id=message.id)
        elif ended is None:
            text = "Message not settled before the end, it comes again"
            logs.log(logging.WARNING, text, message_id=message.id)


@contextmanager
def _in_hand(message: Message[Any, Any]) -> Iterator[None]:
    """In the block, `cancel_requested()` is about this message."""
    if not isinstance(message, StoreMessage):
        yield
        return
    token = received.set(message)
    try:
        yield
    finally:
        received.reset(token)


def _body_of(message: Message[Any, Any]) -> Any:
    try:
        return message.body
    except SerializationError:
        return None
