"""A handler of a poller at work, in the loop or in a thread, and how it is asked to end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redrive.engine.forks import parent_only

_ESCAPING = (SystemExit, KeyboardInterrupt, StopIteration)
"""The first two end a loop whose task raises them; the third cannot be handed from a thread to a loop."""


class Work:
    """A handler at work. `stirred`: it has ended, or was asked to."""

    def __init__(self, task: asyncio.Task[Any], *, is_async: bool) -> None:
        self.task = task
        self.done = asyncio.Event()
        self.stirred = asyncio.Event()
        self._is_async = is_async
        task.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.done.set()
        self.stirred.set()

    def ask_to_end(self) -> None:
        """A thread sees it in its job."""
        self.stirred.set()
        if self._is_async:
            self.task.cancel()

    def give_up(self) -> None:
        """Nobody waits for its thread any more. What runs in the loop was cancelled before."""
        if not self._is_async:
            self.task.cancel()


class Escaped(Exception):
    """Carries what a handler raised and what would go past its job; it is the cause of this."""


def raised_in(task: asyncio.Task[Any]) -> BaseException | None:
    error = task.exception()
    return error.__cause__ if isinstance(error, Escaped) else error


def called(function: Callable[..., Any], *args: object) -> Any:
    try:
        with parent_only():
            return function(*args)
    except _ESCAPING as error:
        raise Escaped from error


async def awaited(function: Callable[..., Awaitable[Any]], *args: object) -> Any:
    """Called in here: what cannot even be called with a job has failed at that job."""
    try:
        with parent_only():
            return await function(*args)
    except _ESCAPING as error:
        raise Escaped from error


async def result_of(future: Any) -> Any:
    value = await asyncio.wrap_future(future)
    return await awaited(lambda: value) if inspect.isawaitable(value) else value


def asked_to_end(error: BaseException) -> bool:
    """Whether somebody cancelled this task. A function that we call may raise the same for reasons of its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is over, and nobody is left to be told
        loop.call_soon_threadsafe(callback)
