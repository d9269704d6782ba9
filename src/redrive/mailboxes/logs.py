"""What mailboxes and their loops say, as structured records: the text for people, the fields for programs.

The fields travel in one dict, `record.redrive`, as those of all events do; they also stand behind the text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from redrive.core.classify import qualified_name
from redrive.core.redact import redact_text
from redrive.engine.evidence import TEXT_LIMIT
from redrive.observe.logs import one_line

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("redrive.mailboxes")


def say(level: int, text: str, **fields: Any) -> None:
    """Quick when the level is off. Values come from anywhere and logs go everywhere: secrets are struck out."""
    if not logger.isEnabledFor(level):
        return
    plain = {name: _plain(value) for name, value in fields.items()}
    line = " ".join((text, *(f"{name}={value}" for name, value in plain.items() if value is not None)))
    logger.log(level, "%s", one_line(line), extra={"redrive": {"event": text, **plain}})


def dead_lettered(
    *,
    message_id: str,
    request_id: object,
    source_mailbox: str,
    delivery_count: int,
    error_type: str,
    error_message: str,
) -> None:
    say(
        logging.WARNING,
        "Message dead-lettered",
        message_id=message_id,
        request_id=request_id,
        source_mailbox=source_mailbox,
        delivery_count=delivery_count,
        error_type=error_type,
        error_message=error_message,
    )


def processing(*, message_id: str, request_id: object, age_seconds: float, action: str) -> None:
    """`action`: replay, discard, alert or handle, see `action_of`."""
    say(
        logging.INFO,
        "Processing dead letter",
        message_id=message_id,
        request_id=request_id,
        age_seconds=age_seconds,
        action=action,
    )


def with_action(action: str) -> Callable[[F], F]:
    """Declares the `action` of a handler of dead letters."""

    def declared(handler: F) -> F:
        handler.__dict__["action"] = action
        return handler

    return declared


def action_of(handler: object, default: str = "handle") -> str:
    """The attribute `action` of a handler, or of the function that a partial calls."""
    while isinstance(handler, partial):
        handler = handler.func
    action = getattr(handler, "action", None)
    return action if isinstance(action, str) else default


def handler_failed(*, message_id: str, error: Exception) -> None:
    say(logging.ERROR, "DLQ handler failed", message_id=message_id, error=said(error), error_type=type_of(error))


def kept(*, message_id: str, error: Exception) -> None:
    text = "Failed to process dead letter, keeping it"
    say(logging.ERROR, text, message_id=message_id, error=said(error), error_type=type_of(error))


def discarded(*, message_id: str, error: Exception) -> None:
    text = "Failed to process dead letter, discarding"
    say(logging.ERROR, text, message_id=message_id, error=said(error), error_type=type_of(error))


def not_ended(*, message_id: str, error: Exception) -> None:
    """Another receiver has it, or it is delivered again when its lease has expired."""
    say(logging.WARNING, "Message could not be settled", message_id=message_id, error=said(error))


def replayed(*, message_id: str, request_id: object, to: str) -> None:
    say(logging.INFO, "Replayed dead letter", message_id=message_id, request_id=request_id, to=to)


def duplicate(*, message_id: str, request_id: object, to: str) -> None:
    say(logging.INFO, "Skipping duplicate replay", message_id=message_id, request_id=request_id, to=to)


def mailbox_full(*, mailbox: str, message_id: str, source_mailbox: str, retry_in_seconds: float) -> None:
    """The message stays where it is."""
    say(
        logging.CRITICAL,
        "Dead letter mailbox full",
        mailbox=mailbox,
        message_id=message_id,
        source_mailbox=source_mailbox,
        retry_in_seconds=retry_in_seconds,
    )


def unreachable(*, mailbox: str, error: Exception, retry_in_seconds: float) -> None:
    text = "Mailbox unreachable"
    say(logging.ERROR, text, mailbox=mailbox, error=said(error), retry_in_seconds=retry_in_seconds)


def reachable(*, mailbox: str) -> None:
    say(logging.WARNING, "Mailbox reachable again", mailbox=mailbox)


def type_of(error: BaseException) -> str:
    """Its name with the module, as dead letters have it."""
    return qualified_name(type(error))


def said(error: BaseException) -> str:
    """The text of an error, also of one that cannot even be printed."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever it raises: the log line is still wanted
        return f"<{type_of(error)} that cannot be printed>"


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    # Before secrets are looked for: that takes seconds for megabytes.
    return redact_text(text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({len(text):,} characters)")
