"""Receiving as loops do it: for long, but not longer than until somebody says stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from inspect import signature
from typing import Any, TypeVar, cast

from redrive.blocking.loops.stop import Stop
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message

T = TypeVar("T")
R = TypeVar("R")

STEP = 1.0
"""Seconds that a mailbox which cannot be told to stop waits at a time."""


def receive_until(
    mailbox: Mailbox[T, R],
    stop: Stop,
    *,
    max_messages: int = 1,
    visibility_timeout: float = 30,
    wait_time_seconds: float = 0,
) -> Sequence[Message[T, R]]:
    asked: dict[str, Any] = {"max_messages": max_messages, "visibility_timeout": visibility_timeout}
    if _can_be_told(type(mailbox)):
        # Beyond what every mailbox promises, so the types do not know it.
        told: Any = mailbox
        return cast("Sequence[Message[T, R]]", told.receive(**asked, wait_time_seconds=wait_time_seconds, stop=stop))
    while True:
        step = min(wait_time_seconds, STEP)
        wait_time_seconds -= step
        got = mailbox.receive(**asked, wait_time_seconds=step)
        if got or wait_time_seconds <= 0 or stop.is_set() or mailbox.closed:
            return got


@lru_cache
def _can_be_told(kind: type[Mailbox[Any, Any]]) -> bool:
    return "stop" in signature(kind.receive).parameters
