"""Mailboxes and loops: messages that are received, worked on and acknowledged, by any number of threads and processes.

    requests = open_mailbox("requests", "sqlite:///redrive.db")
    requests.send({"question": "why"})
    for message in requests.receive(max_messages=10, visibility_timeout=30):
        print(message.body)
        message.acknowledge()

Every call blocks, and may come from any thread. What fails for good becomes a dead letter of the same store.
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
    from redrive.mailboxes.boxes.dead_letter import DeadLetter, PastAttempt
    from redrive.mailboxes.boxes.mailbox import Mailbox, StoreMailbox
    from redrive.mailboxes.boxes.makers import (
        InMemoryMailbox,
        PostgresMailbox,
        RedisMailbox,
        SQLiteMailbox,
        open_mailbox,
    )
    from redrive.mailboxes.boxes.message import Message
    from redrive.mailboxes.boxes.resolver import MailboxResolver
    from redrive.mailboxes.faults import (
        AMBIGUOUS_ERRORS,
        NON_RETRIABLE_ERRORS,
        RETRIABLE_ERRORS,
        AdapterError,
        AuthenticationError,
        BudgetExceededError,
        ContentPolicyViolation,
        DeadlineExceededError,
        ProviderError,
        QuotaExceededError,
        RateLimitError,
        ResourceNotFoundError,
        ValidationError,
        VisibilityExpansionRequired,
    )
    from redrive.mailboxes.letters.consumer import KEEP, DLQConsumer, safe
    from redrive.mailboxes.letters.replay_functions import replay_handler, replay_with_dedup, selective_replay
    from redrive.mailboxes.letters.replayer import Replayed, Replayer, replay
    from redrive.mailboxes.letters.rules import AutoReplay, ReplayRule
    from redrive.mailboxes.life.group import LoopGroup
    from redrive.mailboxes.life.health import HealthServer, dlq_health
    from redrive.mailboxes.life.heartbeat import Heartbeat
    from redrive.mailboxes.life.lease_extender import LeaseExtender, LeaseExtenderConfig
    from redrive.mailboxes.life.runnable import Runnable
    from redrive.mailboxes.life.shutdown import ShutdownCoordinator
    from redrive.mailboxes.life.watchdog import Watchdog
    from redrive.mailboxes.loops.config import MainLoopConfig
    from redrive.mailboxes.loops.eval_loop import EvalLoop
    from redrive.mailboxes.loops.evals import (
        EvalRequest,
        EvalResult,
        Evaluator,
        Sample,
        Score,
        SessionEvaluator,
        session_evaluator,
    )
    from redrive.mailboxes.loops.main_loop import MainLoop, ProviderAdapter
    from redrive.mailboxes.loops.policy import DLQPolicy
    from redrive.mailboxes.loops.requests import (
        Budget,
        Deadline,
        Experiment,
        MainLoopRequest,
        MainLoopResult,
        RunContext,
    )
    from redrive.mailboxes.loops.runs import Run, Session, Usage, current_run
    from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
else:
    from redrive._late import names_of

    __getattr__ = names_of(
        __name__,
        {
            "redrive.errors": (
                "InvalidParameterError",
                "MailboxClosedError",
                "MailboxConnectionError",
                "MailboxError",
                "MailboxFullError",
                "MailboxResolutionError",
                "MessageFinalizedError",
                "ReceiptHandleExpiredError",
                "ReplyNotAvailableError",
                "SerializationError",
            ),
            "redrive.mailboxes.boxes.mailbox": ("Mailbox", "StoreMailbox"),
            "redrive.mailboxes.boxes.makers": (
                "InMemoryMailbox",
                "PostgresMailbox",
                "RedisMailbox",
                "SQLiteMailbox",
                "open_mailbox",
            ),
            "redrive.mailboxes.boxes.message": ("Message",),
            "redrive.mailboxes.boxes.resolver": ("MailboxResolver",),
            "redrive.mailboxes.testing": (),
            "redrive.mailboxes.loops.config": ("MainLoopConfig",),
            "redrive.mailboxes.boxes.dead_letter": ("DeadLetter", "PastAttempt"),
            "redrive.mailboxes.loops.eval_loop": ("EvalLoop",),
            "redrive.mailboxes.loops.evals": (
                "EvalRequest",
                "EvalResult",
                "Evaluator",
                "Sample",
                "Score",
                "SessionEvaluator",
                "session_evaluator",
            ),
            "redrive.mailboxes.faults": (
                "AMBIGUOUS_ERRORS",
                "NON_RETRIABLE_ERRORS",
                "RETRIABLE_ERRORS",
                "AdapterError",
                "AuthenticationError",
                "BudgetExceededError",
                "ContentPolicyViolation",
                "DeadlineExceededError",
                "ProviderError",
                "QuotaExceededError",
                "RateLimitError",
                "ResourceNotFoundError",
                "ValidationError",
                "VisibilityExpansionRequired",
            ),
            "redrive.mailboxes.loops.main_loop": ("MainLoop", "ProviderAdapter"),
            "redrive.mailboxes.loops.policy": ("DLQPolicy",),
            "redrive.mailboxes.loops.requests": (
                "Budget",
                "Deadline",
                "Experiment",
                "MainLoopRequest",
                "MainLoopResult",
                "RunContext",
            ),
            "redrive.mailboxes.loops.runs": ("Run", "Session", "Usage", "current_run"),
            "redrive.mailboxes.letters.consumer": ("KEEP", "DLQConsumer", "safe"),
            "redrive.mailboxes.life.group": ("LoopGroup",),
            "redrive.mailboxes.life.health": ("HealthServer", "dlq_health"),
            "redrive.mailboxes.life.heartbeat": ("Heartbeat",),
            "redrive.mailboxes.life.lease_extender": ("LeaseExtender", "LeaseExtenderConfig"),
            "redrive.mailboxes.metrics": ("MailboxMetrics", "default_metrics"),
            "redrive.mailboxes.letters.replay_functions": ("replay_handler", "replay_with_dedup", "selective_replay"),
            "redrive.mailboxes.letters.replayer": ("Replayed", "Replayer", "replay"),
            "redrive.mailboxes.letters.rules": ("AutoReplay", "ReplayRule"),
            "redrive.mailboxes.life.runnable": ("Runnable",),
            "redrive.mailboxes.life.shutdown": ("ShutdownCoordinator",),
            "redrive.mailboxes.life.watchdog": ("Watchdog",),
        },
    )

    def __dir__() -> list[str]:
        return __all__


__all__ = [
    "AMBIGUOUS_ERRORS",
    "KEEP",
    "NON_RETRIABLE_ERRORS",
    "RETRIABLE_ERRORS",
    "AdapterError",
    "AuthenticationError",
    "AutoReplay",
    "Budget",
    "BudgetExceededError",
    "ContentPolicyViolation",
    "DLQConsumer",
    "DLQPolicy",
    "DeadLetter",
    "Deadline",
    "DeadlineExceededError",
    "EvalLoop",
    "EvalRequest",
    "EvalResult",
    "Evaluator",
    "Experiment",
    "HealthServer",
    "Heartbeat",
    "InMemoryMailbox",
    "InvalidParameterError",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LoopGroup",
    "Mailbox",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MailboxMetrics",
    "MailboxResolutionError",
    "MailboxResolver",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "Message",
    "MessageFinalizedError",
    "PastAttempt",
    "PostgresMailbox",
    "ProviderAdapter",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "ReceiptHandleExpiredError",
    "RedisMailbox",
    "ReplayRule",
    "Replayed",
    "Replayer",
    "ReplyNotAvailableError",
    "ResourceNotFoundError",
    "Run",
    "RunContext",
    "Runnable",
    "SQLiteMailbox",
    "Sample",
    "Score",
    "SerializationError",
    "Session",
    "SessionEvaluator",
    "ShutdownCoordinator",
    "StoreMailbox",
    "Usage",
    "ValidationError",
    "VisibilityExpansionRequired",
    "Watchdog",
    "current_run",
    "default_metrics",
    "dlq_health",
    "open_mailbox",
    "replay",
    "replay_handler",
    "replay_with_dedup",
    "safe",
    "selective_replay",
    "session_evaluator",
]
