"""Runs one handler for one item and says how it ended. Raising, returning, timing out: all become an Outcome here."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from redrive.core import codec
from redrive.core import outcome as o
from redrive.core.durations import format as format_duration
from redrive.core.item import Item, Millis, NewItem
from redrive.engine import signals
from redrive.engine.evidence import failure_of, hint_of, plain_failure
from redrive.engine.registry import Handler
from redrive.engine.threads import Threads, leave
from redrive.errors import PayloadError
from redrive.stores.clock import Clock


class Why(StrEnum):
    """Why redrive itself cancelled a handler."""

    TIMEOUT = "timeout"
    LOST = "lost"
    SHUTDOWN = "shutdown"


_NOT_YET = o.Release("it has not ended")


class Run:
    """One delivery in this worker's hands, from lease to settle. Times are monotonic."""

    __slots__ = (
        "begun",
        "ended",
        "follow_ups",
        "handler",
        "item",
        "kept",
        "leased",
        "outcome",
        "started",
        "task",
        "why",
    )

    def __init__(self, item: Item, handler: Handler, leased: Millis) -> None:
        self.item = item
        self.handler = handler
        self.leased = leased
        self.started = leased
        self.kept: Millis | None = leased
        self.begun = False
        self.ended = leased
        self.outcome: o.Outcome = _NOT_YET
        self.task: asyncio.Task[None] | None = None
        self.why: Why | None = None
        self.follow_ups: tuple[NewItem, ...] = ()

    @property
    def ran(self) -> Millis:
        return max(0, self.ended - self.started)

    def age(self, now: Millis) -> Millis:
        """Time since enqueue or last replay by the store's clock; `now` is this process's monotonic time."""
        given = self.item.leased_at or self.item.renewed_at
        return given - self.item.renewed_at + now - self.leased

    def cancel(self, why: Why) -> None:
        """A task that has not begun would never run if it were cancelled: it will see `why` when it begins."""
        self.why = why
        if self.task is not None and self.begun:
            self.task.cancel()


current: contextvars.ContextVar[Run] = contextvars.ContextVar("redrive_current_run")


class Runner:
    """Async handlers run in the loop, sync handlers in threads with the context copied."""

    def __init__(
        self, clock: Clock, *, threads: int, frames: bool, max_result: int, thread_freed: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._frames = frames
        self._max_result = max_result
        self._thread_freed = thread_freed
        self._threads = Threads(threads)
        self.busy_threads: Counter[str] = Counter()

    def close(self) -> None:
        self._threads.close()

    async def handle(self, run: Run) -> o.Outcome | None:
        """Never raises. None: the lease is lost, there is nothing to say to the store."""
        try:
            handler = run.handler
            max_age = handler.policy.max_age
            if run.why is not None:
                return self._stopped(run)
            if max_age is not None and run.age(run.started) >= max_age:
                return self._expired(max_age)
            try:
                arguments = handler.signature.arguments(run.item)
            except PayloadError as error:
                return o.Dead(failure_of(error, handler.policy, frames=False), "payload")
            current.set(run)
            if handler.is_async:
                return self._returned(run, await handler.function(**arguments))
            return await self._in_thread(run, arguments)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises, SystemExit included, is its failure
            return self._judged(run, error)

    def _judged(self, run: Run, error: BaseException) -> o.Outcome | None:
        try:
            if isinstance(error, asyncio.CancelledError):
                return self._cancelled(run, error)
            return self._raised(run, error)
        except BaseException as fault:  # noqa: BLE001 - a fault of ours must not keep the item for ever
            text = f"redrive could not judge the attempt: {type(fault).__name__}"
            return o.Fail(plain_failure("redrive.InternalError", text, "internal"))

    async def _in_thread(self, run: Run, arguments: dict[str, Any]) -> o.Outcome | None:
        queue = run.handler.queue
        loop = asyncio.get_running_loop()
        future = self._threads.submit(lambda: _call(run.handler.function, arguments))
        self.busy_threads[queue] += 1

        def freed(_: object) -> None:
            self.busy_threads[queue] -= 1
            self._threads.freed()
            self._thread_freed()

        # A thread cannot be cancelled: its slot stays taken until it ends, however the run was judged.
        future.add_done_callback(lambda done: _tell(loop, freed, done))
        value, error = await asyncio.wrap_future(future)
        if error is not None:
            return self._raised(run, error)
        return self._returned(run, await value if inspect.isawaitable(value) else value)

    def _returned(self, run: Run, value: object) -> o.Outcome:
        if isinstance(value, signals.Signal):
            return self._signalled(run, value)
        if value is None:
            return o.Done()
        try:
            return o.Done(codec.dump_result(value, limit=self._max_result))
        except PayloadError as error:
            # The work is done: running it again for the sake of its result would do it twice.
            return o.Dead(failure_of(error, run.handler.policy, frames=False), "result")

    def _raised(self, run: Run, error: BaseException) -> o.Outcome | None:
        if run.why in (Why.LOST, Why.SHUTDOWN):
            return self._stopped(run)
        if isinstance(error, signals.Signal):
            return self._signalled(run, error)
        failure = failure_of(error, run.handler.policy, frames=self._frames)
        # An error object that is raised again would carry this run's frames along; and frames keep locals alive.
        error.__traceback__ = None
        return o.Fail(failure, hint_of(error, self._clock.now()))

    def _signalled(self, run: Run, signal: signals.Signal) -> o.Outcome:
        if isinstance(signal, signals.Snooze):
            return o.Snooze(signal.after, signal.note)
        source = signal.__cause__ or signal
        failure = failure_of(source, run.handler.policy, frames=self._frames)
        if isinstance(signal, signals.Dead):
            return o.Dead(failure, "handler")
        return o.Retry(failure, signal.after if isinstance(signal, signals.Retry) else None)

    def _cancelled(self, run: Run, error: asyncio.CancelledError) -> o.Outcome | None:
        if run.why is Why.TIMEOUT:
            limit = format_duration(run.handler.timeout or 0)
            late = TimeoutError(f"the handler ran longer than its timeout of {limit}")
            return o.Fail(failure_of(late, run.handler.policy))
        return self._raised(run, error)

    def _stopped(self, run: Run) -> o.Outcome | None:
        return None if run.why is Why.LOST else o.Release("the worker stopped")

    def _expired(self, max_age: Millis) -> o.Outcome:
        text = f"older than max_age {format_duration(max_age)} before it could run"
        return o.Expired(plain_failure("redrive.Expired", text, "expired"))


def _call(function: Callable[..., object], arguments: dict[str, Any]) -> tuple[object, BaseException | None]:
    """Exceptions travel as values: a StopIteration cannot be set on a future."""
    process = os.getpid()
    try:
        value, error = function(**arguments), None
    except BaseException as raised:  # noqa: BLE001 - see Runner.handle
        value, error = None, raised
    if os.getpid() != process:
        leave(error)
    return value, error


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[object], None], argument: object) -> None:
    try:
        loop.call_soon_threadsafe(callback, argument)
    except RuntimeError:
        return  # the loop is gone, and its slots with it
