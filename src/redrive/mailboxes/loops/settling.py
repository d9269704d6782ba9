"""The ends of a message that loops need, each in one write with the reply and the outbox items that follow from it.

A result counts after the visibility timeout, too, as long as no other receiver has leased the message. Each function
returns whether it counted, and raises MailboxConnectionError if the store cannot be reached; it may then be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from redrive.core import outcome as o
from redrive.core.item import Failure, NewItem
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.verbs import Verdict
from redrive.engine.evidence import failure_of
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.loops.outbox import letter_item, outgoing_item, shares_store

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.mailbox import Mailbox
    from redrive.mailboxes.boxes.message import StoreMessage

_POLICY = Policy()


@dataclass(frozen=True)
class Outgoing:
    """A message that is sent because another one ended. `mailbox` is a name if it cannot be resolved here; then
    `reply_at` is its address.
    """

    mailbox: Mailbox[Any, Any] | str
    body: Any
    attributes: Mapping[str, str] = field(default_factory=dict)
    reply_at: str = ""
    name: str = ""
    """By which it was asked for: a resolver may know a mailbox by another name than its own."""


def reply_of(message: StoreMessage[Any, Any], body: object) -> Outgoing | None:
    """The reply to this message; None if it asks for none."""
    name = message.reply_to_name
    if name is None:
        return None
    mailbox = message.reply_to
    return Outgoing(name if mailbox is None else mailbox, body, reply_at=message.reply_at, name=name)


def finish(message: StoreMessage[Any, Any], reply: Outgoing | None = None) -> bool:
    """It is done, and so is its reply."""
    return message.settle(None, follow_ups=_follow_ups(message, reply)) is not None


def retry(
    message: StoreMessage[Any, Any], delay_seconds: float, error: BaseException | Failure, *, free: bool = False
) -> bool:
    """It failed, and is tried again. `free`: this delivery does not count."""
    delay = limits.seconds(delay_seconds, field="delay_seconds")
    outcome = o.Limited(failure_from(error), delay) if free else o.Retry(failure_from(error), delay)
    return message.settle(outcome) is not None


def cancel(message: StoreMessage[Any, Any], error: BaseException) -> bool:
    """After a cancel request: its work has stopped. The error that it raised is kept as evidence."""
    return message.settle(o.Cancelled(message.asked, failure_from(error))) is not None


def release(message: StoreMessage[Any, Any]) -> bool:
    """It was not worked on: visible again at once, and this delivery does not count."""
    return message.settle(o.Release()) is not None


def dead_letter(
    message: StoreMessage[Any, Any],
    *,
    route: str,
    reason: str,
    error: BaseException | Failure,
    reply: Outgoing | None = None,
    retry_delay: float = 60,
    counted: bool = True,
    mailbox: Mailbox[Any, Any] | None = None,
) -> Literal["dead", "full", "lost"]:
    """It is a letter of this route, and its last reply is sent. `full`: the route has no room; nothing was sent, and
    the message is visible again after `retry_delay` seconds. `counted` False: it was not run this time. `mailbox`: to
    which the letter is moved if it is on another store.
    """
    dead = o.Dead(failure_from(error), reason, route, limits.seconds(retry_delay, field="retry_delay"), counted)
    follow_ups = _follow_ups(message, reply)
    if mailbox is not None and not shares_store(message.shared, mailbox):
        follow_ups += (letter_item(message.id, mailbox, source=message.mailbox_name),)
    answer = message.settle(dead, follow_ups=follow_ups)
    if answer is None or (answer.verdict is Verdict.APPLIED and answer.reason == "cancelled"):
        return "lost"  # or a cancel request ended it
    died = answer.verdict is Verdict.APPLIED
    if answer.verdict is Verdict.ALREADY:
        died = message.shared.call(message.shared.store.get, message.id).item.state is State.DEAD
    if died and route:
        # The store does not notify receivers of letters.
        message.shared.notify_from_thread(route)
    return "dead" if died else "full"


def failure_from(error: BaseException | Failure) -> Failure:
    return error if isinstance(error, Failure) else failure_of(error, _POLICY)


def _follow_ups(message: StoreMessage[Any, Any], reply: Outgoing | None) -> tuple[NewItem, ...]:
    if reply is None:
        return ()
    return (outgoing_item(message.shared, reply, source=message.mailbox_name),)
