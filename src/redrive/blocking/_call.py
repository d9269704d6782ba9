"""One coroutine in a loop, and the thread that waits for it.

Lighter than a future of the standard library, because it is the whole cost of the facade: one lock, which the coroutine
releases in the very step in which it ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from redrive.errors import AppClosed

T = TypeVar("T")

LOOK = 1.0
"""Seconds after which a waiting thread looks whether the loop is still there."""


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread, where a blocking call would stop it."""
    # asyncio.get_running_loop raises where there is none, which would be a good part of what a call costs.
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - no public function returns None instead


class Call(Generic[T]):
    __slots__ = ("_ended", "_error", "_gate", "_loop", "_name", "_task", "_value", "_work")

    _value: T

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._loop = loop
        self._name = name
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._gate = threading.Lock()
        self._gate.acquire()

    # -- in the thread that waits --------------------------------------------------------------------------------

    def result(self, *steps: Callable[[], object]) -> T:
        """Start it and wait for it.

        Ctrl-C, or whatever a signal's handler raises here, takes the next of `steps` (by default: cancel) and waits on;
        it is raised when the coroutine has ended. Once more after the last step, and the waiting is given up.
        """
        steps = (self.start, *(steps or (self.cancel,)))
        interruption: BaseException | None = None
        try:
            for step in steps:
                try:
                    step()
                    self.wait()
                    break
                except BaseException as error:
                    if step is steps[-1]:
                        raise
                    interruption = error if interruption is None else interruption
            if interruption is not None:
                raise interruption
            return self.outcome()
        finally:
            # An error knows its frames; what the frames know of the error would make a cycle.
            self._error = None
            del interruption

    def start(self) -> None:
        """The loop begins it once, in a copy of this thread's context."""
        self._tell(self._begin)

    def cancel(self) -> None:
        self._tell(self._cancel)

    def wait(self, limit: float | None = None) -> bool:
        """True when it has ended, False if that takes longer than so many seconds."""
        # What has ended is not waited for again: an interruption may come when the gate has just been passed.
        while not self._ended and not self._gate.acquire(timeout=LOOK if limit is None else limit):
            if self._loop.is_closed():
                self._lose()
            elif limit is not None:
                return False
        return True

    def outcome(self) -> T:
        """What a call that has ended returned, or raised."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            if isinstance(error, asyncio.CancelledError):
                raise self._lost() from None
            raise error
        finally:
            del error

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._lose()

    def _lose(self) -> None:
        if not self._ended:
            self._error = self._lost()
            self._ended = True

    def _lost(self) -> AppClosed:
        return AppClosed(
            f"{self._name} was cut off: its loop has ended, and whether it was done is not known",
            hint="close the app when its calls have returned",
        )

    # -- in the loop ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._task is None and not self._ended:
            self._task = self._loop.create_task(self._run())
            self._task.add_done_callback(self._end_unrun)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            # The interruption came before the loop was told to begin.
            self._end_unrun()

    async def _run(self) -> None:
        try:
            self._value = await self._work()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._error = error
        self._end()

    def _end_unrun(self, _task: asyncio.Task[None] | None = None) -> None:
        """A task that is cancelled before its first step never runs."""
        if not self._ended:
            self._error = asyncio.CancelledError()
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._gate.release()
