"""How a loop ends a message: on stores of redrive in one write each, on mailbox classes of users by public calls.

The result is False where the lease was lost to another receiver; then nothing was changed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from redrive.core.item import Failure
from redrive.engine.evidence import text_of
from redrive.errors import MailboxConnectionError, MailboxError, MailboxFullError, ReceiptHandleExpiredError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.dead_letter import DeadLetter, error_text, error_type, moment, request_id_of, trace_id_of
from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.loops import settling

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.message import StoreMessage
    from redrive.stores.clock import Clock

Anyone = Mailbox[Any, Any]
Given = Message[Any, Any]
Result = Literal["dead", "full", "lost"]


class Ends(Protocol):
    def finish(self, message: Given, reply: object | None) -> bool:
        """Done, with the reply if the message asks for one."""

    def retry(self, message: Given, delay: float, error: BaseException | Failure, *, free: bool = False) -> bool:
        """It failed, and is tried again. `free`: this delivery does not count, where that can be had."""

    def release(self, message: Given) -> bool:
        """Visible again at once, and not counted as a delivery where that can be had."""

    def dead_letter(self, message: Given, why: DeadLetterReason, target: Anyone | None, reply: object | None) -> Result:
        """A dead letter of the target (None: of no mailbox), with its terminal reply."""


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


class StoreEnds:
    """Each is one write: the message ends, and its reply and its letter exist, or nothing of that happened."""

    def finish(self, message: Given, reply: object | None) -> bool:
        return settling.finish(_ours(message), self._reply(message, reply))

    def retry(self, message: Given, delay: float, error: BaseException | Failure, *, free: bool = False) -> bool:
        return settling.retry(_ours(message), delay, error, free=free)

    def release(self, message: Given) -> bool:
        return settling.release(_ours(message))

    def dead_letter(self, message: Given, why: DeadLetterReason, target: Anyone | None, reply: object | None) -> Result:
        return settling.dead_letter(
            _ours(message),
            route="" if target is None else target.name,
            reason=why.reason,
            error=why.error,
            reply=self._reply(message, reply),
            retry_delay=why.retry_delay,
            counted=why.counted,
            mailbox=target,
        )

    @staticmethod
    def _reply(message: Given, body: object | None) -> settling.Outgoing | None:
        return None if body is None else settling.reply_of(_ours(message), body)


def _ours(message: Given) -> StoreMessage[Any, Any]:
    return cast("StoreMessage[Any, Any]", message)


class PlainEnds:
    """By public calls, of which any may be the last: then the message comes again, and what was sent is sent twice."""

    def __init__(self, requests: Anyone, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock

    def finish(self, message: Given, reply: object | None) -> bool:
        self._send_reply(message, reply)
        return self._still(message.acknowledge)

    def retry(self, message: Given, delay: float, error: BaseException | Failure, *, free: bool = False) -> bool:
        del error, free
        return self._still(lambda: message.nack(delay))

    def release(self, message: Given) -> bool:
        return self._still(lambda: message.nack(0))

    def dead_letter(self, message: Given, why: DeadLetterReason, target: Anyone | None, reply: object | None) -> Result:
        if target is not None:
            try:
                target.send(self._letter(message, why))
            except MailboxFullError:
                return "full" if self.retry(message, why.retry_delay, why.error) else "lost"
        self._send_reply(message, reply)
        return "dead" if self._still(message.acknowledge) else "lost"

    @staticmethod
    def _still(end: Any) -> bool:
        try:
            end()
        except ReceiptHandleExpiredError:
            return False
        return True

    @staticmethod
    def _send_reply(message: Given, reply: object | None) -> None:
        """A broken address must not hold up the message."""
        if reply is None or message.reply_to is None:
            return
        try:
            message.reply(reply)
        except MailboxConnectionError:
            raise
        except MailboxError as error:
            text = "Reply not sent"
            logs.say(logging.WARNING, text, message_id=message.id, error=logs.said(error))

    def _letter(self, message: Given, why: DeadLetterReason) -> DeadLetter[Any]:
        try:
            body = message.body
        except MailboxError:
            body = getattr(message, "raw", b"")
        now = moment(self._clock.now())
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


def ends_of(requests: Anyone, clock: Clock) -> Ends:
    return StoreEnds() if isinstance(requests, StoreMailbox) else PlainEnds(requests, clock)
