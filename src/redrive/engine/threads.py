"""Threads for sync handlers. Unlike the standard pool's they are daemons: a handler that hangs must not keep the
process from ending, and its item, released or lost, is safe in the store.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NoReturn

Call = Callable[[], Any]
NAME = "redrive-handler"


def leave(error: BaseException | None) -> NoReturn:
    """End a child that a handler forked and that came to the handler's end: the worker is its parent's affair.

    As Python ends a program, but without its clean-up: that, too, is the parent's.
    """
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code
    elif error is not None:
        traceback.print_exception(error)
    if not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201 - as sys.exit does
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)


class Threads:
    """Grows with what is outstanding, up to `limit`. To be used from one loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._outstanding = 0
        self._calls: SimpleQueue[tuple[Call, Future[Any]] | None] = SimpleQueue()

    def submit(self, call: Call) -> Future[Any]:
        """Runs `call` in a copy of the caller's context."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        self._calls.put((lambda: context.run(call), future))
        self._outstanding += 1
        if self._count < min(self._outstanding, self._limit):
            self._count += 1
            threading.Thread(target=self._serve, name=f"{NAME}-{self._count}", daemon=True).start()
        return future

    def freed(self) -> None:
        """To be called in the loop when a future is done."""
        self._outstanding -= 1

    def close(self) -> None:
        """Idle threads end now, the others with what they do; what has not begun is cancelled."""
        while not self._calls.empty():
            waiting = self._calls.get()
            if waiting is not None:
                waiting[1].cancel()
        for _ in range(self._count):
            self._calls.put(None)

    def _serve(self) -> None:
        while (work := self._calls.get()) is not None:
            call, future = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                    future.set_exception(error)
            del work, call, future  # an idle thread must not keep the last item alive
