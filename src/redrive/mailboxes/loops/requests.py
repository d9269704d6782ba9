"""What goes into a main loop and what comes out: envelopes around the caller's own request and output.

All of them cross a store as JSON and come back by type. Times are aware and in UTC. The generic ones have no slots:
with them, `MainLoopRequest[MyRequest](...)` fails in Python 3.11, which wants to note the alias on the frozen value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.quantity import shown
from redrive.core.validation import check_count, check_has, check_optional, check_type
from redrive.errors import InvalidParameterError

T = TypeVar("T")
R = TypeVar("R")


BUDGET = "use Budget(max_total_tokens=…)"
DEADLINE = "use Deadline.after('5m')"
RESOURCES = "give plain data by name, as {'region': 'eu'}"
CONTEXT = "use RunContext"
EXPERIMENT = "use Experiment(name=…)"
_ID = "use uuid4()"
_INSTANT = "give a datetime with a time zone"


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Deadline:
    """After this instant the result is useless: the request is not started, and a late output is not sent."""

    expires_at: datetime

    def __post_init__(self) -> None:
        _check_instant(self.expires_at, "expires_at", hint=f"{_INSTANT}, or use Deadline.after")

    @classmethod
    def after(cls, duration: Duration, *, since: datetime | None = None) -> Deadline:
        """So long from now (or from `since`): seconds, a timedelta or a text such as "5m"."""
        millis = durations.parse(duration, field="deadline")
        return cls(_or_now(since, "since") + timedelta(milliseconds=millis))

    def remaining(self, *, now: datetime | None = None) -> timedelta:
        """Nothing once it has passed, never less."""
        return max(timedelta(0), self.expires_at - _or_now(now, "now"))

    def passed(self, *, now: datetime | None = None) -> bool:
        return _or_now(now, "now") >= self.expires_at


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one delivery of a request may use. None is no limit; the deadline is as good as the request's own."""

    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        for name in ("max_total_tokens", "max_input_tokens", "max_output_tokens"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), field=name, least=0, hint="use 0 or more tokens, or None for no limit")
        check_optional(deadline=(self.deadline, Deadline, DEADLINE))


@dataclass(frozen=True, slots=True)
class RunContext:
    """Who works on what: made anew for each delivery. `trace_id` and `span_id` are the sender's and stay.

    `run_id` is of one delivery, `request_id` of the request through all of them; `attempt` is the delivery count.
    """

    run_id: UUID = field(default_factory=uuid4)
    request_id: UUID | None = None
    session_id: UUID | None = None
    attempt: int = 1
    worker_id: str = ""
    trace_id: str | None = None
    span_id: str | None = None

    def __post_init__(self) -> None:
        check_type(self.run_id, UUID, field="run_id", hint=_ID)
        check_type(self.attempt, int, field="attempt", hint="use a whole number")
        check_type(self.worker_id, str, field="worker_id", hint="give a text")
        check_optional(
            request_id=(self.request_id, UUID, _ID),
            session_id=(self.session_id, UUID, _ID),
            trace_id=(self.trace_id, str, "give a text"),
            span_id=(self.span_id, str, "give a text"),
        )


@dataclass(frozen=True, slots=True)
class Experiment:
    """A named variant. The loop passes it on: `prepare` may read it from `current_run().experiment`."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    description: str = ""

    def __post_init__(self) -> None:
        check_type(self.name, str, field="name", hint="give a text")
        check_type(self.settings, Mapping, field="settings", hint="give plain data by name")
        check_type(self.description, str, field="description", hint="give a text")


@dataclass(frozen=True)
class MainLoopRequest(Generic[T]):
    """One request. What it leaves open is taken from the loop's config. `resources` are plain data by name.

    `debug_bundle` asks for a file with all that is known of the run, in the folder that the loop's config names.
    """

    request: T
    budget: Budget | None = None
    deadline: Deadline | None = None
    resources: dict[str, Any] | None = None
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=utc_now)
    run_context: RunContext | None = None
    experiment: Experiment | None = None
    debug_bundle: bool = False

    def __post_init__(self) -> None:
        check_request(self.request_id, self.created_at)
        check_optional(
            budget=(self.budget, Budget, BUDGET),
            deadline=(self.deadline, Deadline, DEADLINE),
            resources=(self.resources, Mapping, RESOURCES),
            run_context=(self.run_context, RunContext, CONTEXT),
            experiment=(self.experiment, Experiment, EXPERIMENT),
        )
        check_type(self.debug_bundle, bool, field="debug_bundle", hint="use True or False")


def check_request(request_id: object, created_at: object) -> None:
    """What every request has."""
    check_type(request_id, UUID, field="request_id", hint=_ID)
    check_type(created_at, datetime, field="created_at", hint=_INSTANT)


def check_resources(given: object) -> None:
    """Of a loop, which shares them with its adapter: a mapping by name, or a registry by type."""
    if given is not None:
        hint = "give resources by name, as {'region': 'eu'}, or a registry with get(type)"
        check_has(given, "get", field="resources", hint=hint)


def _check_instant(at: object, name: str, *, hint: str = _INSTANT) -> datetime:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidParameterError(f"must be a datetime with a time zone, got {shown(at)}", field=name, hint=hint)
    return at


def _or_now(at: object, name: str) -> datetime:
    return utc_now() if at is None else _check_instant(at, name)


@dataclass(frozen=True)
class MainLoopResult(Generic[R]):
    """What became of a request: its output, or the error of a request that was given up."""

    request_id: UUID
    output: R | None = None
    error: str | None = None
    session_id: UUID | None = None
    run_context: RunContext | None = None
    completed_at: datetime = field(default_factory=utc_now)
    bundle_path: str | None = None

    @property
    def success(self) -> bool:
        return self.error is None
