"""Structured log lines of mailboxes and their loops: a text for people, and fields for programs in `record.redrive`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from redrive.core.classify import qualified_name
from redrive.observe import logs

F = TypeVar("F", bound=Callable[..., Any])

log = partial(logs.log, logging.getLogger("redrive.mailboxes"))


def with_action(action: str) -> Callable[[F], F]:
    """Declares the `action` of a handler of dead letters: replay, discard, alert or handle."""

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


def failed(text: str, message_id: str, error: Exception) -> None:
    log(logging.ERROR, text, message_id=message_id, error=error, error_type=type_of(error))


def not_settled(message_id: str, error: Exception) -> None:
    """Another receiver leased it, or it comes again when its lease expires."""
    log(logging.WARNING, "Message could not be settled", message_id=message_id, error=error)


def outage(mailbox: str, error: Exception | None, pause: float) -> None:
    """Its store did not answer, and is called again after `pause` seconds. Without an error: it answers again."""
    if error is None:
        log(logging.WARNING, "Mailbox reachable again", mailbox=mailbox)
    else:
        log(logging.ERROR, "Mailbox unreachable", mailbox=mailbox, error=error, retry_in_seconds=pause)


def replayed(*, message_id: str, request_id: object, to: str) -> None:
    log(logging.INFO, "Replayed dead letter", message_id=message_id, request_id=request_id, to=to)


def duplicate(*, message_id: str, request_id: object, to: str) -> None:
    log(logging.INFO, "Skipping duplicate replay", message_id=message_id, request_id=request_id, to=to)


def type_of(error: BaseException) -> str:
    """Its name with the module, as dead letters have it."""
    return qualified_name(type(error))
