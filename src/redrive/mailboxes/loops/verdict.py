"""Whether a failed message is given up, and what its letter says about why."""

from __future__ import annotations

import logging
from typing import Any

from redrive.core.item import Failure, Item
from redrive.engine.evidence import plain_failure
from redrive.engine.forks import parent_only
from redrive.mailboxes import logs
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.message import Message, StoreMessage
from redrive.mailboxes.faults import BudgetExceededError, DeadlineExceededError
from redrive.mailboxes.loops.policy import DLQPolicy

Policy = DLQPolicy[Any, Any]
Given = Message[Any, Any]

DELIVERIES = 5
"""How often a message may take its worker with it where no policy says."""


def verdict(policy: Policy | None, message: Given, error: BaseException) -> str | None:
    """Why it is given up, or None if it is to be tried again.

    What is out of time or budget stays so: no policy is asked. Without a policy the first failure is the last.
    """
    if isinstance(error, DeadlineExceededError):
        return "deadline"
    if isinstance(error, BudgetExceededError):
        return "budget"
    if policy is None:
        return "no_retry"
    item = item_of(message)
    if item is not None and item.last_chance:
        return "last_chance"
    return _reason(policy, error) if _dies(policy, message, error) else None


def mailbox_of(policy: Policy | None, message: Given, error: BaseException | Failure) -> Mailbox[Any, Any] | None:
    """The mailbox for its letter; None if there is no policy: then it is a letter all the same, of no route."""
    if policy is None:
        return None
    try:
        return policy.mailbox_for(error if isinstance(error, Exception) else None)
    except Exception as broken:  # noqa: BLE001 - the user's own policy
        text = "Policy failed, the letter goes to its first mailbox"
        logs.say(logging.ERROR, text, message_id=message.id, mailbox=policy.mailbox.name, error=logs.said(broken))
        return policy.mailbox


def lost_too_often(policy: Policy | None, message: Given) -> Failure | None:
    """The failure of a message whose workers were lost too often; None if it may be tried.

    Lost deliveries count, and errors with them: not those that are excluded, and not where a policy of the user's own
    says how many there may be.
    """
    allowed = DELIVERIES if policy is None else policy.max_delivery_count
    lost = _lost(policy, message)
    errors = _errors(policy, message) if lost else 0
    if lost + errors < allowed:
        return None
    item = item_of(message)
    source = "" if item is None else item.queue
    which = f"{lost} of {lost + errors} deliveries, the others failed" if errors else f"each of {lost} deliveries"
    text = f"lease expired on {which}: the receiver was lost"
    return plain_failure("redrive.LeaseExpired", text, "crash", key=f"lease expired in {source}")


def item_of(message: Given) -> Item | None:
    """None for a message of a user's own mailbox class."""
    return message.item if isinstance(message, StoreMessage) else None


def is_suspect(message: Given) -> bool:
    """Whether a worker was lost with it."""
    item = item_of(message)
    return item is not None and item.crashes > 0


def is_letter(message: Given) -> bool:
    """Whether it is a dead letter, received from the mailbox of its route."""
    item = item_of(message)
    return item is not None and item.letter is not None


def _lost(policy: Policy | None, message: Given) -> int:
    item = item_of(message)
    if item is not None:
        return int(item.crashes)
    # A user's own mailbox class counts deliveries alone: where every error ends at the limit, the rest was lost.
    plain = policy is None or (not policy.exclude_errors and _is_plain(policy))
    return message.delivery_count - 1 if plain else 0


def _errors(policy: Policy | None, message: Given) -> int:
    item = item_of(message)
    return 0 if item is None or policy is None or not _is_plain(policy) else int(item.errors)


def is_excluded(policy: Policy | None, error: BaseException) -> bool:
    """Whether the error costs no delivery: it is tried again until the message is too old."""
    return policy is not None and _is_plain(policy) and policy.lists(policy.exclude_errors, error)


def _dies(policy: Policy, message: Given, error: BaseException) -> bool:
    try:
        with parent_only():
            return bool(policy.should_dead_letter(message, error))  # type: ignore[arg-type]  # SystemExit is asked about, too
    except Exception as broken:  # noqa: BLE001 - the user's own policy
        logs.say(logging.ERROR, "Policy failed, its threshold decides", message_id=message.id, error=logs.said(broken))
        return message.delivery_count >= policy.max_delivery_count


def _reason(policy: Policy, error: BaseException) -> str:
    if not _is_plain(policy):
        return "policy"
    if policy.lists(policy.exclude_errors, error):
        return "max_age"
    return "rule" if policy.lists(policy.include_errors, error) else "max_attempts"


def _is_plain(policy: Policy) -> bool:
    return type(policy).should_dead_letter is DLQPolicy.should_dead_letter
