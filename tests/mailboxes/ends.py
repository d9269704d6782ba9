"""The ends of messages as loops make them, for tests that need a message with such an end."""

from __future__ import annotations

from typing import Any

from redrive.mailboxes import StoreMailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.loops.settling import DeadLetterReason, Result, StoreSettler

Taken = StoreMessage[Any, Any]


def finish(message: Taken, reply: object | None = None) -> bool:
    return StoreSettler(message.mailbox).finish(message, reply)


def retry(message: Taken, delay: float, error: Exception) -> bool:
    return StoreSettler(message.mailbox).retry(message, delay, error)


def release(message: Taken) -> bool:
    return StoreSettler(message.mailbox).release(message)


def dead_letter(
    message: Taken,
    *,
    route: str,
    reason: str,
    error: Exception,
    reply: object | None = None,
    retry_delay: float = 60,
    counted: bool = True,
) -> Result:
    target: StoreMailbox[Any, Any] | None = StoreMailbox.of(route, message.shared) if route else None
    why = DeadLetterReason(reason, error, retry_delay, counted=counted)
    return StoreSettler(message.mailbox).dead_letter(message, why, target, reply)
