"""Between the loop and what must not run in it, or must not be stopped by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def aside(call: Callable[[], T]) -> T:
    """In a thread of its own: the loop's default executor may be full of a user's hanging calls."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: Exception | None) -> None:
        # The caller may have been cancelled meanwhile.
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None is a T where the call returns it

    def run() -> None:
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            failed = error
            tell(loop, lambda: resolve(None, failed))
        else:
            tell(loop, lambda: resolve(result, None))

    try:
        threading.Thread(target=run, name="redrive-aside", daemon=True).start()
    except RuntimeError:
        # The interpreter is ending and starts no more threads. Nobody else needs the loop then.
        run()
    return await future


def in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The function as a coroutine, which runs it `aside`."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await aside(partial(function, *args, **kwargs))

    return call


async def through(work: Coroutine[Any, Any, T]) -> T:
    """To its end, also when the caller is cancelled meanwhile: what is half done would be finished by nobody."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except BaseException:  # noqa: BLE001, S110 - it is raised below
            pass
    if cancelled and not task.cancelled():
        # Also when it failed: whoever was told of that instead would try again, and never end.
        raise asyncio.CancelledError from task.exception()
    return task.result()


def tell(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # The loop is closed, and with it went whoever waited.
        return
