"""The kit for tests without an event loop: the names of `redrive.testing`, and no `await`.

The app may be of either colour: one of `redrive.blocking`, or an async one that the program under test runs in its own
loop, as web frameworks do in their tests. `sandbox`, `inline` and `FakeClock` have no colour.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from redrive.app import Redrive
from redrive.blocking._bridge import App, Bridge
from redrive.blocking._call import Call, in_event_loop
from redrive.blocking._process import this_process
from redrive.core.durations import Duration
from redrive.core.item import Item
from redrive.errors import CalledFromLoop
from redrive.testing import _inside, kit
from redrive.testing._drain import Drained
from redrive.testing._expect import ANYTHING, Error
from redrive.testing._inline import inline
from redrive.testing._inside import AnyApp
from redrive.testing._sandbox import sandbox
from redrive.testing.clock import FakeClock

__all__ = [
    "Drained",
    "FakeClock",
    "assert_dead",
    "assert_done",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "inline",
    "sandbox",
]

P = ParamSpec("P")
T = TypeVar("T")


def drain(
    app: AnyApp,
    queues: Iterable[str] | None = None,
    *,
    within: Duration | None = None,
    fail_fast: bool = False,
    limit: int = kit.LIMIT,
) -> Drained:
    """Work until nothing is left that will become due by itself; see `redrive.testing.drain`."""
    __tracebackhide__ = True
    return _call(app, kit.drain, queues, within=within, fail_fast=fail_fast, limit=limit)


def assert_enqueued(
    app: AnyApp,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    delay: Duration | None = None,
    count: int | None = None,
) -> tuple[Item, ...]:
    """Such items wait; see `redrive.testing.assert_enqueued`."""
    __tracebackhide__ = True
    return _assert(app, kit.assert_enqueued, queue, payload, containing=containing, id=id, delay=delay, count=count)


def assert_not_enqueued(
    app: AnyApp,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    delay: Duration | None = None,
) -> None:
    """No such item waits; see `redrive.testing.assert_not_enqueued`."""
    __tracebackhide__ = True
    _assert(app, kit.assert_not_enqueued, queue, payload, containing=containing, id=id, delay=delay)


def assert_done(
    app: AnyApp,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    result: object = ANYTHING,
    count: int | None = None,
) -> tuple[Item, ...]:
    """Such items were handled; see `redrive.testing.assert_done`."""
    __tracebackhide__ = True
    return _assert(app, kit.assert_done, queue, payload, containing=containing, id=id, result=result, count=count)


def assert_dead(
    app: AnyApp,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    error: Error | None = None,
    reason: str | None = None,
    text: str | None = None,
    count: int | None = None,
) -> tuple[Item, ...]:
    """Such items are dead letters; see `redrive.testing.assert_dead`."""
    __tracebackhide__ = True
    return _assert(
        app,
        kit.assert_dead,
        queue,
        payload,
        containing=containing,
        id=id,
        error=error,
        reason=reason,
        text=text,
        count=count,
    )


def _assert(
    app: AnyApp,
    function: Callable[Concatenate[Redrive, P], Coroutine[Any, Any, T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """The way through the loop is nothing that a failed test should show."""
    __tracebackhide__ = True
    try:
        return _call(app, function, *args, **kwargs)
    except AssertionError as failed:
        raise failed.with_traceback(None) from None


def _call(
    app: AnyApp,
    function: Callable[Concatenate[Redrive, P], Coroutine[Any, Any, T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    __tracebackhide__ = True
    inner, name = _inside.plain(app), function.__name__
    _refuse_in_loop(name)
    if isinstance(inner, App):
        return Bridge(inner).call(function, inner, *args, **kwargs)
    # An async app lives in a loop of the program under test; looking at its store works from any other.
    process, guest = this_process(), object()
    loop = process.enter(guest)
    try:
        return Call(loop, name, partial(function, inner, *args, **kwargs)).result()
    finally:
        process.leave(guest)


def _refuse_in_loop(name: str) -> None:
    if in_event_loop():
        message = f"{name} of redrive.testing.blocking would block the event loop that runs in this thread"
        raise CalledFromLoop(message, hint=f"use `from redrive.testing import {name}`, and await it")
