"""Samples, scores and the functions that judge: what an evaluation loop works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from inspect import Parameter
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from redrive.core.generics import parameters_of
from redrive.core.validation import check_optional, check_range, check_type
from redrive.mailboxes.loops.requests import CONTEXT, EXPERIMENT, Experiment, RunContext, check_request, utc_now
from redrive.mailboxes.loops.runs import Session

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
ExpectedT = TypeVar("ExpectedT")


@dataclass(frozen=True)
class Sample(Generic[InputT, ExpectedT]):
    """One case: what the main loop is asked, and what a good output is compared with."""

    id: str
    input: InputT
    expected: ExpectedT

    def __post_init__(self) -> None:
        check_type(self.id, str, field="id", hint="give a text")


@dataclass(frozen=True, slots=True)
class Score:
    """From 0 to 1, and whether that is enough."""

    value: float
    passed: bool
    reason: str = ""

    def __post_init__(self) -> None:
        check_range(self.value, field="value", least=0, most=1)
        check_type(self.passed, bool, field="passed", hint="use True or False")
        check_type(self.reason, str, field="reason", hint="give a text")


@dataclass(frozen=True)
class EvalRequest(Generic[InputT, ExpectedT]):
    sample: Sample[InputT, ExpectedT]
    experiment: Experiment
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=utc_now)
    run_context: RunContext | None = None

    def __post_init__(self) -> None:
        check_type(self.sample, Sample, field="sample", hint="use Sample(id, input, expected)")
        check_type(self.experiment, Experiment, field="experiment", hint=EXPERIMENT)
        check_request(self.request_id, self.created_at)
        check_optional(run_context=(self.run_context, RunContext, CONTEXT))


@dataclass(frozen=True, slots=True)
class EvalResult:
    """How one sample did. `error` is set where there was no output to judge: then the score is 0 and did not pass."""

    sample_id: str
    experiment_name: str
    score: Score
    latency_ms: int = 0
    error: str | None = None
    request_id: UUID | None = None
    completed_at: datetime = field(default_factory=utc_now)

    @property
    def success(self) -> bool:
        return self.error is None


Evaluator = Callable[[OutputT, ExpectedT], Score]
SessionEvaluator = Callable[[OutputT, ExpectedT, Session], Score]
Judge = Callable[..., Any]
"""Either of them; may also be a coroutine function."""


def session_evaluator(function: Judge) -> Judge:
    """Marks an evaluator that wants the session, where its signature does not show it."""
    function.wants_session = True  # type: ignore[attr-defined]  # the mark
    return function


def judging(evaluator: Judge) -> Callable[[Any, Any, Session], Any]:
    """The evaluator as one that gets (output, expected, session).

    It wants the session if it is marked so, has a parameter of that name, or needs three arguments.
    """
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = {name: each for name, each in parameters_of(evaluator).items() if each.kind not in variable}
    if "session" in parameters:
        return lambda output, expected, session: evaluator(output, expected, session=session)
    marked = getattr(evaluator, "wants_session", False) is True
    needed = [each for each in parameters.values() if each.default is Parameter.empty]
    if marked or len(needed) >= 3:
        return evaluator
    return lambda output, expected, _session: evaluator(output, expected)
