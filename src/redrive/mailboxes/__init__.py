"""Mailboxes and loops: messages that are received, worked on and acknowledged, by any number of threads and processes.

    requests = open_mailbox("requests", "sqlite:///redrive.db")
    requests.send({"question": "why"})
    for message in requests.receive(max_messages=10, visibility_timeout=30):
        print(message.body)
        message.acknowledge()

Every call blocks, and may come from any thread. What fails for good becomes a dead letter of the same store. The loops
of agents and their types are in `redrive.mailboxes.agents`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redrive.errors import (
        InvalidParameterError,
        MailboxClosedError,
        MailboxConnectionError,
        MailboxError,
        MailboxFullError,
        MailboxResolutionError,
        MessageFinalizedError,
        ReceiptHandleExpiredError,
        ReplyNotAvailableError,
        SerializationError,
    )
    from redrive.mailboxes.agents import *  # noqa: F403 - imports from here keep working
    from redrive.mailboxes.boxes.dead_letter import DeadLetter, PastAttempt
    from redrive.mailboxes.boxes.factories import (
        InMemoryMailbox,
        PostgresMailbox,
        RedisMailbox,
        SQLiteMailbox,
        open_mailbox,
    )
    from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
    from redrive.mailboxes.boxes.message import Message
    from redrive.mailboxes.boxes.resolver import MailboxResolver
    from redrive.mailboxes.letters.consumer import KEEP, DLQConsumer, safe
    from redrive.mailboxes.letters.replayer import Replayed, Replayer, replay
    from redrive.mailboxes.letters.rules import AutoReplay, ReplayRule
    from redrive.mailboxes.loops.group import LoopGroup
    from redrive.mailboxes.loops.policy import DLQPolicy
    from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
    from redrive.observe.endpoint import HealthServer
else:
    from redrive._late import names_of

    __getattr__, __dir__ = names_of(
        __name__,
        {
            "redrive.errors": (
                "InvalidParameterError MailboxClosedError MailboxConnectionError MailboxError MailboxFullError "
                "MailboxResolutionError MessageFinalizedError ReceiptHandleExpiredError ReplyNotAvailableError "
                "SerializationError"
            ),
            "redrive.mailboxes.boxes.mailbox": "Mailbox StoreMailbox",
            "redrive.mailboxes.boxes.factories": (
                "InMemoryMailbox PostgresMailbox RedisMailbox SQLiteMailbox open_mailbox"
            ),
            "redrive.mailboxes.boxes.message": "Message",
            "redrive.mailboxes.boxes.resolver": "MailboxResolver",
            "redrive.mailboxes.testing": "",
            "redrive.mailboxes.boxes.dead_letter": "DeadLetter PastAttempt",
            "redrive.mailboxes.loops.policy": "DLQPolicy",
            "redrive.mailboxes.letters.consumer": "KEEP DLQConsumer safe",
            "redrive.mailboxes.loops.group": "LoopGroup",
            "redrive.observe.endpoint": "HealthServer",
            "redrive.mailboxes.metrics": "MailboxMetrics default_metrics",
            "redrive.mailboxes.letters.replayer": "Replayed Replayer replay",
            "redrive.mailboxes.letters.rules": "AutoReplay ReplayRule",
            # Imports of these from here keep working.
            "redrive.mailboxes.agents": (
                "AMBIGUOUS_ERRORS NON_RETRIABLE_ERRORS RETRIABLE_ERRORS AdapterError AuthenticationError Budget "
                "BudgetExceededError ContentPolicyViolation Deadline DeadlineExceededError EvalLoop EvalRequest "
                "EvalResult Evaluator Experiment Heartbeat LeaseExtender LeaseExtenderConfig MainLoop "
                "MainLoopConfig MainLoopRequest MainLoopResult ProviderAdapter ProviderError QuotaExceededError "
                "RateLimitError ResourceNotFoundError Run RunContext Runnable Sample Score Session SessionEvaluator "
                "ShutdownCoordinator Usage ValidationError VisibilityExpansionRequired Watchdog current_run "
                "dlq_health replay_handler replay_with_dedup selective_replay session_evaluator"
            ),
        },
    )


__all__ = [
    "KEEP",
    "AutoReplay",
    "DLQConsumer",
    "DLQPolicy",
    "DeadLetter",
    "HealthServer",
    "InMemoryMailbox",
    "InvalidParameterError",
    "LoopGroup",
    "Mailbox",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MailboxMetrics",
    "MailboxResolutionError",
    "MailboxResolver",
    "Message",
    "MessageFinalizedError",
    "PastAttempt",
    "PostgresMailbox",
    "ReceiptHandleExpiredError",
    "RedisMailbox",
    "ReplayRule",
    "Replayed",
    "Replayer",
    "ReplyNotAvailableError",
    "SQLiteMailbox",
    "SerializationError",
    "StoreMailbox",
    "default_metrics",
    "open_mailbox",
    "replay",
    "safe",
]
