"""The loop of this process, in a thread of its own: there as long as somebody uses it.

A forked child has none of its parent's threads, so it begins anew with a loop and locks of its own. When the process
ends, what is still open is closed, within bounds.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from typing import Protocol

from redrive.blocking._call import Call
from redrive.errors import AppClosed

NAME = "redrive-loop"
FAREWELL = 10.0
"""Seconds for everything to be closed when the process ends. A store that is gone must not keep it."""
LAST_CALLS = 2.0
"""Seconds for calls of other threads that are under way when the loop is no longer needed."""

logger = logging.getLogger("redrive.blocking")


class Closable(Protocol):
    async def close(self) -> None: ...


class LoopThread:
    """A daemon: it must not keep the process from ending."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._over = False
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loop.close()
            raise AppClosed(f"no thread could be started for the event loop: {error}; nothing was done") from error

    def end(self) -> None:
        """Returns when the thread has ended, or would not."""
        Call(self.loop, "end", self._wind_up).start()
        self._thread.join(2 * LAST_CALLS)

    def _run(self) -> None:
        while not self._over:
            try:
                self.loop.run_forever()
            except BaseException:
                # SystemExit in a task that a handler started, say. Others still need the loop.
                logger.exception("something tried to end the event loop; it goes on")
        self.loop.close()

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=LAST_CALLS)
        stubborn = {task for task in others if not task.done()}
        for task in stubborn:
            task.cancel()
        if stubborn:
            await asyncio.wait(stubborn, timeout=LAST_CALLS / 2)
        await self.loop.shutdown_asyncgens()
        self._over = True
        self.loop.stop()


class Process:
    def __init__(self) -> None:
        # A signal's handler may call an app in the middle of a call: the same thread must not wait for itself.
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._guests: set[object] = set()
        self._apps: set[Closable] = set()
        self._ending = False

    @property
    def ending(self) -> bool:
        """What is opened while it ends is closed by nobody, and cut off."""
        return self._ending

    def enter(self, guest: object) -> asyncio.AbstractEventLoop:
        """The loop, which will be there until the guest has left."""
        with self._lock:
            if self._ending:
                raise AppClosed("the process is ending; nothing was done")
            if self._thread is None:
                thread = LoopThread()
                thread.start()
                self._thread = thread
            self._guests.add(guest)
            return self._thread.loop

    def leave(self, guest: object, *, stays: Closable | None = None) -> None:
        """`stays` is an app that lives in the loop from now on, until it leaves by itself or the process ends."""
        with self._lock:
            self._guests.discard(guest)
            if stays is not None:
                self._apps.add(stays)
            over = self._take_if_unused()
        if over is not None:
            over.end()

    def part(self, app: Closable) -> None:
        """The app is closed."""
        with self._lock:
            self._apps.discard(app)
            over = self._take_if_unused()
        if over is not None:
            over.end()

    def _take_if_unused(self) -> LoopThread | None:
        if self._guests or self._apps:
            return None
        thread, self._thread = self._thread, None
        return thread

    def end(self) -> None:
        """At exit: close what is open. Workers stop, and what they hold is released."""
        with self._lock:
            self._ending = True
            thread, self._thread = self._thread, None
            apps = tuple(self._apps)
        if thread is None:
            return
        closing = Call(thread.loop, "close", lambda: _close_all(apps))
        closing.start()
        if not closing.wait(FAREWELL):
            logger.error("apps did not close within %d s; leases they hold will expire by themselves", FAREWELL)
        thread.end()


async def _close_all(apps: tuple[Closable, ...]) -> None:
    for error in await asyncio.gather(*(app.close() for app in apps), return_exceptions=True):
        if error is not None:
            logger.error("an app could not be closed: %s: %s", type(error).__name__, error)


_process = Process()
_forebears: list[Process] = []
"""Kept in a child: to free its parent's loop would close files that both share."""


def this_process() -> Process:
    return _process


def _begin_anew() -> None:
    global _process  # noqa: PLW0603 - there is one loop in a process, and a child is another process
    _forebears.append(_process)
    _process = Process()


def _end() -> None:
    _process.end()


os.register_at_fork(after_in_child=_begin_anew)
atexit.register(_end)
