"""Whether a loop has come to rest: no task in it has a turn left, and nothing from outside can give it one.

asyncio has no public way to ask. A loop that cannot tell is never said to be at rest.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from collections.abc import Collection, Sized
from concurrent.futures import Future
from types import CodeType, FrameType
from typing import Any

import pytest

from redrive.engine.threads import NAME, Call, Threads

TURNS = 40
"""For what could be woken from outside by a socket or a thread that is not known here."""
TWICE = 2
"""Between two turns with nothing to run the loop also looks for news of sockets and threads."""
OWN_PIPE = 1
"""Through which threads wake a loop; every loop watches it."""
OF_STORES = ("redrive.stores.", "psycopg")
"""Their sockets answer verbs, and PostgreSQL's listener ignores what its own store sends."""
DEEP = 3
"""The detector of blocking calls has its frames above that of who waits."""
ASIDE = "redrive-aside"
"""A thread for one call, which ends."""


async def turns(loop: asyncio.AbstractEventLoop, *, rest: bool = True) -> bool:
    """Let everybody in the loop act: until it has come to `rest`, or so many turns. Whether it has."""
    ready: Sized | None = getattr(loop, "_ready", None)
    idle = 0
    for _ in range(TURNS):
        await asyncio.sleep(0)  # noqa: TID251 - no time passes: a turn of the loop
        idle = idle + 1 if ready is not None and not ready else 0
        if rest and idle == TWICE:
            return True
    return False


def alone(loop: asyncio.AbstractEventLoop, silent: Collection[threading.Thread]) -> bool:
    """No socket and no thread is there that could wake somebody unasked. `silent`: threads that do not."""
    selector = getattr(loop, "_selector", None)
    if selector is None or sum(map(_may_wake, selector.get_map().values())) > OWN_PIPE:
        return False
    return all(thread in silent or thread.name.startswith(NAME) for thread in threading.enumerate())


def _may_wake(watched: selectors.SelectorKey) -> bool:
    reader, writer = watched.data
    callback = getattr(reader or writer, "_callback", None)
    transport = getattr(callback, "__self__", None)
    owner = type(transport.get_protocol()) if isinstance(transport, asyncio.Transport) else callback
    return not getattr(owner, "__module__", "").startswith(OF_STORES)


class Calls:
    """The calls of handlers that run in threads."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._asked: dict[Future[Any], list[int]] = {}
        submit = Threads.submit

        def note(threads: Threads, call: Call) -> Future[Any]:
            begun: list[int] = []

            def called() -> Any:
                begun.append(threading.get_ident())
                return call()

            future = submit(threads, called)
            self._asked[future] = begun
            return future

        patch.setattr(Threads, "submit", note)

    def under_way(self) -> bool:
        """Whether one has not begun, or goes on without waiting for another thread, or has not told its end."""
        frames = sys._current_frames() if self._asked else {}  # noqa: SLF001 - there is no other way to see it
        self._asked = {future: begun for future, begun in self._asked.items() if not _told(future, begun, frames)}
        return any(not begun or not _waits(frames.get(begun[0])) for begun in self._asked.values())


def _told(future: Future[Any], begun: list[int], frames: dict[int, FrameType]) -> bool:
    """It is done before it tells so, and back in its loop when it has."""
    if not future.done():
        return False
    frame = frames.get(begun[0]) if begun else None
    return frame is None or frame.f_code is _code(Threads._serve)  # noqa: SLF001 - where its thread waits for calls


def _waits(frame: FrameType | None) -> bool:
    """For an event, a barrier, a future or a condition that nobody has notified yet."""
    for _ in range(DEEP):
        if frame is not None and frame.f_code is _code(threading.Condition.wait):
            waiter = frame.f_locals.get("waiter")
            return waiter is not None and bool(waiter.locked())
        frame = frame and frame.f_back
    return False


def _code(function: Any) -> CodeType:
    code: CodeType = function.__code__
    return code


def busy_aside() -> bool:
    return any(thread.name == ASIDE for thread in threading.enumerate())
