"""Deadlines of async adapters, evaluators and the like: the awaitable is cancelled when the run's time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from redrive.engine.caller import one_loop, run_blocking
from redrive.mailboxes.faults import DeadlineExceededError
from redrive.mailboxes.loops.runs import Run

__all__ = ["ended", "one_loop"]


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
