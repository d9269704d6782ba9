"""Async adapters, evaluators and the like, in a thread that has no event loop: they run to their end in one of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from inspect import isawaitable
from typing import Any

from redrive.engine.forks import parent_only
from redrive.mailboxes.faults import DeadlineExceededError
from redrive.mailboxes.loops.runs import Run

_here = threading.local()


@contextmanager
def one_loop() -> Iterator[None]:
    """In the block this thread uses one event loop for all: clients that adapters keep are bound to theirs."""
    with asyncio.Runner() as runner:
        _here.runner = runner
        try:
            yield
        finally:
            del _here.runner


def ended(value: Any, run: Run | None = None) -> Any:
    """What it is, or what it comes to if it has to be awaited. At the run's deadline it is cancelled."""
    if not isawaitable(value):
        return value
    runner: asyncio.Runner | None = getattr(_here, "runner", None)
    task = _in_time(value, run)
    return asyncio.run(task) if runner is None else runner.run(_at_home(task), context=copy_context())


async def _at_home(value: Awaitable[Any]) -> Any:
    """A child has no business with the loop's event loop either: the parent waits for the same events."""
    with parent_only():
        return await value


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
