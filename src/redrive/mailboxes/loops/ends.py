"""How a loop lets go of a message: on our stores in one write each, on others as well as it can be done.

All say whether it counted: False where somebody else has the message by now, and nothing was changed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from redrive.core.item import Failure
from redrive.core.policy import Policy
from redrive.engine.evidence import failure_of, text_of
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
_POLICY = Policy()
Buried = Literal["buried", "full", "lost"]


class Ends(Protocol):
    def finish(self, message: Given, reply: object | None) -> bool:
        """Done, and the reply sent if somebody waits for it."""

    def retry(self, message: Given, delay: float, error: BaseException | Failure, *, free: bool = False) -> bool:
        """It failed, and is tried again. `free`: this delivery does not count, where that can be had."""

    def release(self, message: Given) -> bool:
        """Visible again at once, and not counted as a delivery where that can be had."""

    def bury(self, message: Given, grave: Grave, target: Anyone | None, reply: object | None) -> Buried:
        """A dead letter of the target (or of nobody's), with its terminal reply."""


class Grave:
    """Why a message is given up. `otherwise`: seconds after which it comes back if there is no room for it.

    `counted`: whether this delivery was one that ran.
    """

    __slots__ = ("counted", "error", "otherwise", "reason")

    def __init__(self, reason: str, error: BaseException | Failure, otherwise: float, *, counted: bool = True) -> None:
        self.reason = reason
        self.error = error
        self.otherwise = otherwise
        self.counted = counted

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
        return settling.retry(_ours(message), delay, _failure(error), free=free)

    def release(self, message: Given) -> bool:
        return settling.release(_ours(message))

    def bury(self, message: Given, grave: Grave, target: Anyone | None, reply: object | None) -> Buried:
        return settling.bury(
            _ours(message),
            route="" if target is None else target.name,
            reason=grave.reason,
            error=_failure(grave.error),
            reply=self._reply(message, reply),
            otherwise=grave.otherwise,
            counted=grave.counted,
            mailbox=target,
        )

    @staticmethod
    def _reply(message: Given, body: object | None) -> settling.Outgoing | None:
        return None if body is None else settling.reply_of(_ours(message), body)


def _ours(message: Given) -> StoreMessage[Any, Any]:
    return cast("StoreMessage[Any, Any]", message)


def _failure(error: BaseException | Failure) -> Failure:
    """Also of an exit, which is no Exception."""
    return error if isinstance(error, Failure) else failure_of(error, _POLICY)


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

    def bury(self, message: Given, grave: Grave, target: Anyone | None, reply: object | None) -> Buried:
        if target is not None:
            try:
                target.send(self._letter(message, grave))
            except MailboxFullError:
                return "full" if self.retry(message, grave.otherwise, grave.error) else "lost"
        self._send_reply(message, reply)
        return "buried" if self._still(message.acknowledge) else "lost"

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

    def _letter(self, message: Given, grave: Grave) -> DeadLetter[Any]:
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
            last_error=grave.text,
            last_error_type=grave.error_type,
            dead_lettered_at=now,
            first_received_at=getattr(message, "first_received_at", None) or now,
            request_id=request_id_of(body),
            reply_to=None if message.reply_to is None else message.reply_to.name,
            trace_id=trace_id_of(body, message.attributes),
            first_enqueued_at=message.enqueued_at,
        )


def ends_of(requests: Anyone, clock: Clock) -> Ends:
    return StoreEnds() if isinstance(requests, StoreMailbox) else PlainEnds(requests, clock)
