"""Opening an app on a store that may not answer in time, as a supervisor's restarts do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from redrive import Redrive
from redrive.errors import StoreError

TRIES = 40


@asynccontextmanager
async def opened(make: Callable[[], Redrive]) -> AsyncIterator[Redrive]:
    """Whoever opens one whose store fails is told so, and tries again with a new one."""
    async with await _opened(make, TRIES) as app:
        yield app


async def _opened(make: Callable[[], Redrive], tries: int) -> Redrive:
    try:
        return await make().open()
    except StoreError:
        if tries == 1:
            raise
    return await _opened(make, tries - 1)
