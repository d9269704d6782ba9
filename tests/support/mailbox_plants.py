"""Loops with a fault on purpose: whoever kills them again and again must find it."""

from __future__ import annotations

import time
from typing import Any

from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message
from redrive.mailboxes.loops import worker
from redrive.mailboxes.loops.settling import DeadLetterReason, Result, StoreSettler

GAP = 0.002
"""Seconds between two writes that should be one, for somebody to die in."""


class _RepliesFirst(StoreSettler):
    def finish(self, message: Message[Any, Any], reply: object | None = None) -> bool:
        if reply is not None and message.reply_to is not None:
            message.reply(reply)
            time.sleep(GAP)  # noqa: TID251 - a real process dies in it
        return super().finish(message, None)


class _RepliesLast(StoreSettler):
    def dead_letter(
        self, message: Message[Any, Any], why: DeadLetterReason, target: Mailbox[Any, Any] | None, reply: object | None
    ) -> Result:
        ended = super().dead_letter(message, why, target, None)
        time.sleep(GAP)  # noqa: TID251 - as above
        if ended == "dead" and reply is not None and message.reply_to is not None:
            message.reply_to.send(reply)
        return ended


PLANTS: dict[str, type[StoreSettler]] = {"replies first": _RepliesFirst, "replies last": _RepliesLast}


def plant(name: str) -> None:
    """In this process, from now on."""
    vars(worker)["StoreSettler"] = PLANTS[name]
