"""One time limit for many calls that begin one after the other, with one timer for all of them."""

from __future__ import annotations

import asyncio
from types import TracebackType

from redrive.core.item import Millis


class Patience:
    """`with patience:` in a task: TimeoutError if what is inside takes longer. As `asyncio.timeout`, at a tenth of its
    price: all calls have the same time, so they are late in the order in which they began.
    """

    def __init__(self, limit: Millis) -> None:
        self._limit = limit / 1000
        self._ends: dict[asyncio.Task[object], tuple[float, int]] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is None or task in self._ends:
            raise RuntimeError("one call at a time, in a task")
        self._ends[task] = loop.time() + self._limit, task.cancelling()
        if self._timer is None:
            self._timer = loop.call_later(self._limit, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        for task, (end, _) in tuple(self._ends.items()):
            if end > now:
                self._timer = loop.call_at(end, self._look)
                break
            if task not in self._late:
                self._late.add(task)
                task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        _, cancelled = self._ends.pop(task)
        if not self._ends and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if task in self._late:
            self._late.discard(task)
            # Somebody else may have cancelled it too, and then that is what counts.
            if task.uncancel() <= cancelled and kind is asyncio.CancelledError:
                raise TimeoutError from error
