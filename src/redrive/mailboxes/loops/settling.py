"""Settlement of messages by loops: on a store in one write each, for mailbox classes of users by public calls.

Each method gives False, or "lost", if another receiver leased the message: then nothing was changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from redrive.core import outcome as o
from redrive.core.instants import moment
from redrive.core.item import Failure, NewItem
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.validation import check_seconds
from redrive.core.verbs import Verdict
from redrive.engine.evidence import failure_of, text_of
from redrive.errors import MailboxConnectionError, MailboxError, MailboxFullError, ReceiptHandleExpiredError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter, error_text, error_type, request_id_of, trace_id_of
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message, StoreMessage
from redrive.mailboxes.loops.outbox import letter_item, reply_item, shares_store

AnyMailbox = Mailbox[Any, Any]
AnyMessage = Message[Any, Any]
Result = Literal["dead", "full", "lost"]

_POLICY = Policy()


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Why a message is given up. `retry_delay`: seconds after which it is received again if the target is full.

    `counted`: whether this delivery was one that ran.
    """

    reason: str
    error: BaseException | Failure
    retry_delay: float
    counted: bool = field(default=True, kw_only=True)

    @property
    def error_type(self) -> str:
        return error_type(self.error) if isinstance(self.error, Failure) else logs.type_of(self.error)

    @property
    def text(self) -> str:
        return error_text(self.error) if isinstance(self.error, Failure) else text_of(self.error)


class Settler:
    """By public calls. A crash between two of them repeats the message, and what was sent for it."""

    def __init__(self, requests: AnyMailbox) -> None:
        self._requests = requests

    def finish(self, message: AnyMessage, reply: object | None = None) -> bool:
        """Done, with the reply if the message asks for one."""
        self._send_reply(message, reply)
        return _counted(message.acknowledge)

    def retry(self, message: AnyMessage, delay: float, error: BaseException | Failure, *, free: bool = False) -> bool:
        """It failed, and is received again after `delay` seconds. `free`: this delivery does not count, on a store."""
        del error, free
        return _counted(lambda: message.nack(delay))

    def release(self, message: AnyMessage) -> bool:
        """It was not processed: visible again at once. On a store this delivery does not count."""
        return _counted(lambda: message.nack(0))

    def dead_letter(
        self, message: AnyMessage, why: DeadLetterReason, target: AnyMailbox | None, reply: object | None
    ) -> Result:
        """A dead letter of the target (None: of no mailbox), with its last reply. "full": the target has no room; no
        reply was sent, and the message is received again.
        """
        if target is not None:
            try:
                target.send(self._letter(message, why))
            except MailboxFullError:
                return "full" if self.retry(message, why.retry_delay, why.error) else "lost"
        self._send_reply(message, reply)
        return "dead" if _counted(message.acknowledge) else "lost"

    @staticmethod
    def _send_reply(message: AnyMessage, reply: object | None) -> None:
        """A broken address must not hold up the message."""
        if reply is None or message.reply_to is None:
            return
        try:
            message.reply(reply)
        except MailboxConnectionError:
            raise
        except MailboxError as error:
            logs.log(logging.WARNING, "Reply not sent", message_id=message.id, error=error)

    def _letter(self, message: AnyMessage, why: DeadLetterReason) -> DeadLetter[Any]:
        try:
            body = message.body
        except MailboxError:
            body = getattr(message, "raw", b"")
        now = moment(self._requests.clock.now())
        return DeadLetter(
            message_id=message.id,
            body=body,
            source_mailbox=self._requests.name,
            delivery_count=message.delivery_count,
            last_error=why.text,
            last_error_type=why.error_type,
            dead_lettered_at=now,
            first_received_at=getattr(message, "first_received_at", None) or now,
            request_id=request_id_of(body),
            reply_to=None if message.reply_to is None else message.reply_to.name,
            trace_id=trace_id_of(body, message.attributes),
            first_enqueued_at=message.enqueued_at,
        )


class StoreSettler(Settler):
    """In one write: the message ends, and its reply and its letter exist, or none of that happened."""

    def finish(self, message: AnyMessage, reply: object | None = None) -> bool:
        ours = _ours(message)
        return ours.settle(ours.done(), _replies(ours, reply)) is not None

    def retry(self, message: AnyMessage, delay: float, error: BaseException | Failure, *, free: bool = False) -> bool:
        outcome = o.Limited if free else o.Retry
        return _ours(message).settle(outcome(failure_from(error), check_seconds(delay, field="delay"))) is not None

    def release(self, message: AnyMessage) -> bool:
        return _ours(message).settle(o.Release()) is not None

    def dead_letter(
        self, message: AnyMessage, why: DeadLetterReason, target: AnyMailbox | None, reply: object | None
    ) -> Result:
        ours, route = _ours(message), "" if target is None else target.name
        delay = check_seconds(why.retry_delay, field="retry_delay")
        follow_ups = _replies(ours, reply)
        if target is not None and not shares_store(ours.shared, target):
            follow_ups += (letter_item(ours.id, target, source=ours.mailbox.name),)
        answer = ours.settle(o.Dead(failure_from(why.error), why.reason, route, delay, why.counted), follow_ups)
        if answer is None or (answer.verdict is Verdict.APPLIED and answer.reason == "cancelled"):
            return "lost"  # or a cancel request ended it
        died = answer.verdict is Verdict.APPLIED
        if answer.verdict is Verdict.ALREADY:
            died = ours.mailbox.call(ours.shared.store.get, ours.id).item.state is State.DEAD
        if died and route:
            ours.shared.notify_from_thread(route)  # the store does not notify of letters
        return "dead" if died else "full"


def failure_from(error: BaseException | Failure) -> Failure:
    return error if isinstance(error, Failure) else failure_of(error, _POLICY)


def _ours(message: AnyMessage) -> StoreMessage[Any, Any]:
    return cast("StoreMessage[Any, Any]", message)


def _replies(message: StoreMessage[Any, Any], body: object | None) -> tuple[NewItem, ...]:
    return () if body is None or message.reply_to_name is None else (reply_item(message, body),)


def _counted(end: Callable[[], None]) -> bool:
    try:
        end()
    except ReceiptHandleExpiredError:
        return False
    return True
