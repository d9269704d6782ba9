"""From a thread without an event loop into the loop in which an app lives."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar

from redrive import app as asynchronous
from redrive.blocking._call import Call, in_event_loop
from redrive.blocking._process import this_process
from redrive.core.durations import Duration, parse
from redrive.core.durations import format as format_duration
from redrive.engine.runner import current
from redrive.errors import CalledFromLoop

P = ParamSpec("P")
T = TypeVar("T")

OFFICES = ("Letters", "Replays", "Schedules", "Views", "Audit", "Alerts")

logger = logging.getLogger("redrive.blocking")


class App(asynchronous.Redrive):
    """The async app behind a facade. It knows where it lives: in the loop it was opened in, or that of its worker."""

    _entered_by = "with app:"

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        loop = self._parts.loop
        return loop if loop is not None and loop.is_running() else None

    def move_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a forked child an open app has no loop until one is found for it."""
        if self._parts.state == "open" and self.home is None:
            self._parts.loop = loop


class Bridge:
    def __init__(self, app: App) -> None:
        self.app = app

    def call(self, method: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the app where the app lives, and wait for it."""
        name = _as_called(method)
        _refuse_in_loop(name)
        with self._loop() as loop:
            return Call(loop, name, partial(method, *args, **kwargs)).result()

    def close(self) -> None:
        self.call(self.app.close)
        this_process().part(self.app)

    def run(self, *, until_idle: bool, queues: Iterable[str] | None, grace: Duration, concurrency: int | None) -> None:
        """The first interruption stops the worker politely, the second at once, the third leaves it alone."""
        _refuse_in_loop("run")
        with self._loop() as loop, sigterm_interrupts():
            work = partial(self.app.run, until_idle=until_idle, queues=queues, grace=grace, concurrency=concurrency)
            running = Call(loop, "run", work)

            def stop(grace: Duration | None) -> None:
                # A stop before the start would not be heard; to start it again does nothing.
                running.start()
                Call(loop, "stop", partial(self.app.stop, grace=grace)).start()

            def politely() -> None:
                stop(None)
                patience = format_duration(parse(grace, field="grace"))
                logger.warning("stopping; handlers may finish within %s, another signal stops them at once", patience)

            def at_once() -> None:
                stop(0)
                logger.warning("stopping at once; items in hand are released")

            running.result(politely, at_once)

    @contextmanager
    def _loop(self) -> Iterator[asyncio.AbstractEventLoop]:
        """Where the app lives; for one that is not open, or was open before a fork, the loop of this process."""
        home = self.app.home
        if home is not None:
            yield home
            return
        process = this_process()
        guest = object()
        loop = process.enter(guest)
        try:
            self.app.move_in(loop)
            yield loop
        finally:
            process.leave(guest, stays=self.app if self.app.home is loop else None)


def _as_called(method: Callable[..., object]) -> str:
    """As a user writes it after `app.`"""
    owner, _, name = method.__qualname__.rpartition(".")
    return f"{owner.lower()}.{name}" if owner in OFFICES else name


def _refuse_in_loop(name: str) -> None:
    if not in_event_loop():
        return
    hint = f"use `from redrive import Redrive` and `await app.{name}(...)`"
    if current.get(None) is not None:
        hint += "; in a handler of a blocking app: make it a plain `def`, or use app.follow_up"
    raise CalledFromLoop(f"{name} of redrive.blocking would block the event loop that runs in this thread", hint=hint)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Where SIGTERM would end the process on the spot, it ends it in order instead, as `redrive worker run` does."""
    at_once = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not at_once or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
