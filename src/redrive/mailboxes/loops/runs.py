"""One delivery of a request while it is worked on: what it may use, what it used, and when it must end.

run = current_run()                 # in prepare, in an adapter, or in whatever they call
run.record(input_tokens=1200)       # raises BudgetExceededError as soon as it is too much
run.check()                         # raises DeadlineExceededError once the deadline has passed
run.beat()                          # it takes long, but it goes on
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from inspect import isawaitable
from typing import Any, Protocol, cast
from uuid import UUID

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.core.instants import moment
from redrive.core.validation import check_count
from redrive.engine.caller import run_blocking
from redrive.mailboxes.boxes.dead_letter import field_of
from redrive.mailboxes.errors import BudgetExceededError, DeadlineExceededError
from redrive.mailboxes.loops.requests import Budget, Deadline, Experiment, RunContext
from redrive.stores.clock import Clock


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. The total is the reported one, or the sum where that is more."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """What is known of a run that has ended: session evaluators judge by it.

    `expansions`: how often the prompt was made anew. `notes` is what `current_run().notes` gathered.
    """

    session_id: UUID
    run_context: RunContext
    usage: Usage
    expansions: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)


class Run:
    """`current_run()` gives it. Any thread may record, check and beat."""

    def __init__(
        self,
        context: RunContext,
        *,
        clock: Clock,
        heartbeat: Heartbeat,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        resources: Any = None,
        experiment: Experiment | None = None,
    ) -> None:
        self.context = context
        self.budget = budget
        self.deadline = _earlier(deadline, None if budget is None else budget.deadline)
        self.resources: Any = {} if resources is None else resources
        """What the config, the loop and the request bring: a mapping by name, or a registry with `get`."""
        self.experiment = experiment
        self.expansions = 0
        self.notes: dict[str, Any] = {}
        self._clock = clock
        self._heartbeat = heartbeat
        self._lock = threading.Lock()
        self._usage = Usage()

    @property
    def now(self) -> datetime:
        return moment(self._clock.now())

    @property
    def usage(self) -> Usage:
        return self._usage

    def beat(self) -> None:
        self._heartbeat.beat()

    def record(self, *, input_tokens: int = 0, output_tokens: int = 0, total_tokens: int | None = None) -> None:
        """Add to what was used. Without a total it is the sum of the two."""
        given = (input_tokens, output_tokens, 0 if total_tokens is None else total_tokens)
        for number in given:
            check_count(number, field="usage", least=0)
        with self._lock:
            used = self._usage
            self._usage = Usage(
                used.input_tokens + input_tokens,
                used.output_tokens + output_tokens,
                used.total_tokens + max(given[2], input_tokens + output_tokens),
            )
        self._check_budget()

    def check(self) -> None:
        """Raises if the budget is used up or the deadline has passed; else nothing happens."""
        self._check_budget()
        deadline = self.deadline
        if deadline is not None and deadline.passed(now=self.now):
            raise DeadlineExceededError(f"the deadline was {deadline.expires_at.isoformat()}")

    def session(self) -> Session:
        context = self.context
        # The loop always gives a run a session.
        return Session(context.session_id or context.run_id, context, self._usage, self.expansions, dict(self.notes))

    def _check_budget(self) -> None:
        if self.budget is None:
            return
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            limit, used = getattr(self.budget, f"max_{name}"), getattr(self._usage, name)
            if limit is not None and used > limit:
                text = f"{used:,} {name.replace('_', ' ')} were used, {limit:,} are allowed"
                raise BudgetExceededError(text, what=f"max_{name}", used=used, limit=limit)


class ResourceRegistry(Protocol):
    """Resources by name or by type: a mapping, or a registry whose `get` returns None for a key it does not have."""

    def get(self, key: Any, /) -> Any: ...


class _Layered:
    """Resources of several origins; the first that has a key wins."""

    def __init__(self, layers: Sequence[ResourceRegistry]) -> None:
        self._layers = layers

    def get(self, key: Any, default: Any = None) -> Any:
        found = (each.get(key) for each in self._layers)
        return next((value for value in found if value is not None), default)


def merged_resources(*given: ResourceRegistry | None) -> Any:
    """One mapping where all are mappings, with the later ones first; else a registry that asks one after the other."""
    layers = [each for each in given if each is not None and each != {}]
    if all(isinstance(each, Mapping) for each in layers):
        return {name: value for each in layers for name, value in cast("Mapping[str, Any]", each).items()}
    return layers[0] if len(layers) == 1 else _Layered(layers[::-1])


_current: ContextVar[Run | None] = ContextVar("redrive_mailboxes_run", default=None)


def current_run() -> Run | None:
    """What this thread or task works on; None outside of a loop."""
    return _current.get()


@contextmanager
def under_way(run: Run) -> Iterator[Run]:
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


def usage_of(output: object) -> dict[str, int] | None:
    """The usage that an output reports, by the field names of providers; None if it reports none."""
    usage = field_of(output, "usage")
    if usage is None:
        return None
    found = {
        "input_tokens": _number(usage, "input_tokens", "prompt_tokens"),
        "output_tokens": _number(usage, "output_tokens", "completion_tokens"),
        "total_tokens": _number(usage, "total_tokens"),
    }
    return {name: number for name, number in found.items() if number is not None} or None


def _number(usage: object, *names: str) -> int | None:
    for name in names:
        value = field_of(usage, name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _earlier(*deadlines: Deadline | None) -> Deadline | None:
    given = [each for each in deadlines if each is not None]
    return min(given, key=lambda each: each.expires_at, default=None)


def ended(value: Any, run: Run | None = None) -> Any:
    """The value, or the result of an awaitable, which is cancelled at the run's deadline."""
    return run_blocking(_in_time(value, run)) if isawaitable(value) else value


async def _in_time(value: Awaitable[Any], run: Run | None) -> Any:
    if run is None or run.deadline is None:
        return await value
    limit = asyncio.timeout(run.deadline.remaining(now=run.now).total_seconds())
    try:
        async with limit:
            return await value
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceededError(f"the deadline was {run.deadline.expires_at.isoformat()}") from None
