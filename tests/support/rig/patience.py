"""Waiting for something real, with a deadline. The only place of the rig where a test process sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

POLL = 0.01


class TooLong(AssertionError):
    pass


async def eventually(
    check: Callable[[], bool | Awaitable[bool]], *, limit: float, what: str, poll: float = POLL
) -> None:
    """Until `check` says so; TooLong after `limit` seconds."""
    deadline = time.monotonic() + limit
    while True:
        answer = check()
        if answer if isinstance(answer, bool) else await answer:
            return
        if time.monotonic() > deadline:
            raise TooLong(f"not within {limit} s: {what}")
        await asyncio.sleep(poll)  # noqa: TID251 - other processes and threads need real time


async def breathe() -> None:
    """Let threads of this process answer."""
    await asyncio.sleep(0.0002)  # noqa: TID251 - a thread needs real time
