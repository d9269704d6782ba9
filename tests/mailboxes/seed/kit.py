"""What the text of the dead letter specification leaves to the reader: `log`, `metrics`, `pagerduty`, the adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from redrive.mailboxes import (
    ContentPolicyViolation,
    DeadLetter,
    DLQPolicy,
    Mailbox,
    MailboxConnectionError,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    RateLimitError,
    Score,
    ValidationError,
)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class MyRequest:
    question: str
    critical: bool = False


@dataclass(frozen=True)
class MyOutput:
    answer: str


class Recorder:
    """A logger and a metrics client in one: whatever is called is noted."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda text="", **fields: self.said.append((name, text, fields))

    def of(self, text: str) -> list[dict[str, Any]]:
        return [fields for _, said, fields in self.said if said == text]


log = Recorder()
metrics = Recorder()
pagerduty = Recorder()


class Adapter:
    """Answers, or raises what it was told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked: list[MyRequest] = []

    def evaluate(self, prompt: MyRequest) -> MyOutput:
        self.asked.append(prompt)
        if self.error is not None:
            raise self.error
        return MyOutput(f"{prompt.question}!")


class MyMainLoop(MainLoop[MyRequest, MyOutput]):
    pass


Request = MainLoopRequest[MyRequest]
Result = MainLoopResult[MyOutput]


def is_critical_request(body: Request) -> bool:
    return body.request.critical


def get_error_rate(body: Request) -> float:
    return 0.9 if "hard" in body.request.question else 0.1


def fail_once(adapter: Adapter, loop: MyMainLoop, requests: Mailbox[Request, Result], *asked: MyRequest) -> list[UUID]:
    """Each is sent, and dies of a validation error."""
    adapter.error = ValidationError("no such field")
    sent = [Request(request=each) for each in asked]
    for request in sent:
        requests.send(request)
        loop.run(max_iterations=1, wait_time_seconds=0)
    adapter.error = None
    return [request.request_id for request in sent]


def exactly(output: MyOutput, expected: str) -> Score:
    right = output.answer == expected
    return Score(value=float(right), passed=right, reason="compared")


def policies(dead_letters: Mailbox[DeadLetter[Request], None]) -> dict[str, DLQPolicy[Request, Result]]:
    return {
        # Dead-letter validation and policy errors immediately (don't retry)
        "immediate": DLQPolicy(
            mailbox=dead_letters,
            max_delivery_count=5,
            include_errors=frozenset(
                {
                    ValidationError,  # Invalid request format
                    ContentPolicyViolation,  # Content policy rejection
                }
            ),
        ),
        # Never dead-letter transient errors (always retry)
        "transient": DLQPolicy(
            mailbox=dead_letters,
            max_delivery_count=5,
            exclude_errors=frozenset(
                {
                    MailboxConnectionError,  # Network issues
                    RateLimitError,  # Rate limiting
                    TimeoutError,  # Timeouts
                }
            ),
        ),
        # Complex policy: immediate DLQ for some, never DLQ for others, threshold for rest
        "combined": DLQPolicy(
            mailbox=dead_letters,
            max_delivery_count=5,
            include_errors=frozenset({ValidationError}),  # Immediate
            exclude_errors=frozenset({RateLimitError}),  # Never
        ),
    }
