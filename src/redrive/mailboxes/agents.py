"""The types of agents: loops that work on requests of a provider or evaluator, with deadlines, budgets and runs.

Mailboxes themselves are in `redrive.mailboxes`.
"""

from redrive.blocking.loops.group import Runnable
from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.lease_extender import LeaseExtender, LeaseExtenderConfig
from redrive.blocking.loops.shutdown import ShutdownCoordinator
from redrive.blocking.loops.watchdog import Watchdog
from redrive.mailboxes.errors import (
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
from redrive.mailboxes.letters.replay_functions import replay_handler, replay_with_dedup, selective_replay
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
from redrive.mailboxes.loops.group import dlq_health
from redrive.mailboxes.loops.main_loop import MainLoop, ProviderAdapter
from redrive.mailboxes.loops.requests import Budget, Deadline, Experiment, MainLoopRequest, MainLoopResult, RunContext
from redrive.mailboxes.loops.runs import Run, Session, Usage, current_run

__all__ = [
    "AMBIGUOUS_ERRORS",
    "NON_RETRIABLE_ERRORS",
    "RETRIABLE_ERRORS",
    "AdapterError",
    "AuthenticationError",
    "Budget",
    "BudgetExceededError",
    "ContentPolicyViolation",
    "Deadline",
    "DeadlineExceededError",
    "EvalLoop",
    "EvalRequest",
    "EvalResult",
    "Evaluator",
    "Experiment",
    "Heartbeat",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "ProviderAdapter",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "ResourceNotFoundError",
    "Run",
    "RunContext",
    "Runnable",
    "Sample",
    "Score",
    "Session",
    "SessionEvaluator",
    "ShutdownCoordinator",
    "Usage",
    "ValidationError",
    "VisibilityExpansionRequired",
    "Watchdog",
    "current_run",
    "dlq_health",
    "replay_handler",
    "replay_with_dedup",
    "selective_replay",
    "session_evaluator",
]
