"""The caller: the one way to run a user's function.

In an event loop, `async def` runs in the loop and plain `def` in a daemon thread, with the context copied:

    caller = Caller(threads=4)
    value, error = await caller(function, item)      # error is None if the function returned
    caller.close()

The function's exception is returned, not raised: SystemExit and KeyboardInterrupt would end the loop, and a future
cannot carry StopIteration. So a CancelledError that is *raised* means that the calling task was cancelled; one of the
function's own is returned as its error. An awaitable that a plain function returns is awaited in the loop.

A thread cannot be cancelled. `in_thread` calls `ended` in the loop when the thread is free again, with the result that
a cancelled caller did not wait for:

    value, error = await caller.in_thread(partial(function, item), ended=lambda called: slots.free())

In a thread of the user, without an event loop, `call_blocking(function, item)` returns the value or raises.

A child process that the function forks ends where the function does, in all of them.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

from redrive.engine.forks import parent_only
from redrive.engine.threads import Threads


class Called(NamedTuple):
    value: Any
    error: BaseException | None


class Caller:
    """To be used from one loop. `threads`: how many plain functions run at once; the others wait for a thread."""

    def __init__(self, threads: int) -> None:
        self._threads = Threads(threads)

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Called:
        if is_async(function):
            return await _awaited(function, *args)
        return await self.in_thread(partial(function, *args))

    def in_thread(
        self, call: Callable[[], Any], ended: Callable[[Called], None] | None = None
    ) -> Coroutine[Any, Any, Called]:
        """Submitted when this returns; to be awaited for the result."""
        loop = asyncio.get_running_loop()
        future: Future[Called] = self._threads.submit(partial(_called, call))

        def freed(done: Future[Called]) -> None:
            self._threads.freed()
            if ended is not None:
                ended(Called(None, asyncio.CancelledError()) if done.cancelled() else done.result())

        def tell(done: Future[Called]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(freed, done)

        future.add_done_callback(tell)
        return _result(future)

    def close(self) -> None:
        """Idle threads end now, the others after their call; a call that has not begun is cancelled."""
        self._threads.close()


def is_async(function: object) -> bool:
    """Whether a call gives an awaitable, as far as that can be known before it."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def cancelled_from_outside(error: BaseException) -> bool:
    """Whether the error says that the current task was cancelled. A function may raise CancelledError by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _awaited(function: Callable[..., Awaitable[Any]], *args: Any) -> Called:
    try:
        with parent_only():
            return Called(await function(*args), None)
    except BaseException as error:
        if cancelled_from_outside(error):
            raise
        return Called(None, error)


async def _result(future: Future[Called]) -> Called:
    called = await asyncio.wrap_future(future)
    return await _awaited(lambda: called.value) if inspect.isawaitable(called.value) else called


def _called(call: Callable[[], Any]) -> Called:
    try:
        with parent_only():
            return Called(call(), None)
    except BaseException as error:  # noqa: BLE001 - it is returned to the loop
        return Called(None, error)


# --- in a thread without an event loop ---

_here = threading.local()


@contextmanager
def one_loop() -> Iterator[None]:
    """In the block, `call_blocking` in this thread uses one event loop: clients of async functions are bound to it."""
    with asyncio.Runner() as runner:
        _here.runner = runner
        try:
            yield
        finally:
            del _here.runner


def call_blocking(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a plain or async function, which runs to its end in this thread."""
    with parent_only():
        value = function(*args)
        return run_blocking(value) if inspect.isawaitable(value) else value


def run_blocking(awaitable: Awaitable[Any]) -> Any:
    runner: asyncio.Runner | None = getattr(_here, "runner", None)
    task = _in_parent(awaitable)
    return asyncio.run(task) if runner is None else runner.run(task, context=copy_context())


async def _in_parent(awaitable: Awaitable[Any]) -> Any:
    with parent_only():  # within the loop: a child must not wait for the events of its parent's loop
        return await awaitable
