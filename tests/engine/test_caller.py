"""The caller returns what a user's function returned or raised, whatever its kind, and tells cancellation apart."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from redrive.engine.caller import Called, Caller, call_blocking, one_loop

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="")


@pytest.fixture
def caller() -> Iterator[Caller]:
    made = Caller(1)
    yield made
    made.close()


def plain(error: BaseException | None = None) -> str:
    if error is not None:
        raise error
    return name.get()


async def coroutine(error: BaseException | None = None) -> str:
    return plain(error)


def gives_awaitable(error: BaseException | None = None) -> Awaitable[str]:
    return coroutine(error)


class AsyncObject:
    async def __call__(self, error: BaseException | None = None) -> str:
        return plain(error)


KINDS: list[Callable[..., Any]] = [plain, coroutine, gives_awaitable, AsyncObject()]


@pytest.mark.parametrize("function", KINDS)
async def test_a_result_or_an_error_comes_back_as_a_value(caller: Caller, function: Callable[..., Any]) -> None:
    name.set("here")
    assert await caller(function) == ("here", None)
    for error in (ValueError(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()):
        assert await caller(function, error) == (None, error)


async def test_a_plain_function_may_raise_what_no_future_carries(caller: Caller) -> None:
    stop = StopIteration()
    assert await caller(plain, stop) == (None, stop)


async def test_cancellation_of_the_calling_task_is_raised(caller: Caller) -> None:
    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(caller(hang))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_caller_is_told_when_its_thread_is_free(caller: Caller) -> None:
    entered, go_on = threading.Event(), threading.Event()
    freed: asyncio.Future[Called] = asyncio.get_running_loop().create_future()

    def hang() -> str:
        entered.set()
        go_on.wait()
        return "late"

    task = asyncio.create_task(caller.in_thread(hang, freed.set_result))
    await asyncio.to_thread(entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not freed.done()
    go_on.set()
    assert await freed == ("late", None)


@pytest.mark.parametrize("function", KINDS)
def test_without_a_loop_it_returns_or_raises(function: Callable[..., Any]) -> None:
    token = name.set("here")
    assert call_blocking(function) == "here"
    with pytest.raises(ValueError, match="no"):
        call_blocking(function, ValueError("no"))
    name.reset(token)


def test_one_loop_serves_all_calls_of_a_thread() -> None:
    async def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with one_loop():
        assert call_blocking(loop) is call_blocking(partial(loop))
    assert call_blocking(loop) is not call_blocking(loop)
