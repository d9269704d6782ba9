"""Runs one handler for one item and says how it ended. Raising, returning, timing out: all become an Outcome here."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from redrive.core import codec
from redrive.core import outcome as o
from redrive.core.durations import format as format_duration
from redrive.core.item import OUTPUT_LIMIT, Item, Millis, NewItem
from redrive.core.policy import Policy
from redrive.engine import signals
from redrive.engine.caller import Called, Caller
from redrive.engine.evidence import failure_of, hint_of, plain_failure, text_of
from redrive.engine.forks import parent_only
from redrive.engine.policies import Choice, Policies
from redrive.engine.registry import Handler
from redrive.errors import ConfigError, PayloadError
from redrive.stores.clock import Clock


class Why(StrEnum):
    """Why redrive itself cancelled a handler."""

    TIMEOUT = "timeout"
    LOST = "lost"
    SHUTDOWN = "shutdown"
    CANCELLED = "cancelled"


_NOT_YET = o.Release("it has not ended")


class Run:
    """One delivery in this worker's hands, from lease to settle. Times are monotonic.

    `again`: it failed, crashed or was replayed before. `asked`: who wants it cancelled, and why. `over`: it has ended,
    and is judged by `choice`. `offered`: what its handler gave to `keep_output`, at any time, even after the end.
    `output`: what of that is recorded.
    """

    __slots__ = (
        "again",
        "asked",
        "begun",
        "choice",
        "ended",
        "follow_ups",
        "handler",
        "item",
        "kept",
        "leased",
        "offered",
        "outcome",
        "output",
        "over",
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
        self.again = item.errors + item.crashes + item.replays > 0
        self.asked = ""
        self.over = False
        self.choice: Choice | None = None
        self.follow_ups: tuple[NewItem, ...] = ()
        self.offered = self.output = b""

    @property
    def ran(self) -> Millis:
        return max(0, self.ended - self.started)

    def age(self, now: Millis) -> Millis:
        """Time since enqueue or last replay by the store's clock; `now` is this process's monotonic time."""
        given = self.item.leased_at or self.item.renewed_at
        return given - self.item.renewed_at + now - self.leased

    @property
    def lease(self) -> Millis:
        return self.handler.lease

    @property
    def policy(self) -> Policy:
        return self.handler.policy if self.choice is None else self.choice.policy

    def cancel(self, why: Why) -> None:
        """A task that has not begun would never run if it were cancelled: it will see `why` when it begins.

        What has ended is left alone: the error in hand is the evidence, not that we stopped looking at it.
        """
        if not self.over:
            self.why = why
            if self.task is not None and self.begun:
                self.task.cancel()

    def lose(self) -> bool:
        """Its lease is lost. False if it was cancelled before."""
        if self.why is not None:
            return False
        self.cancel(Why.LOST)
        return True

    def ask_to_stop(self, reason: str) -> None:
        """An async handler is cancelled; one in a thread has to ask `cancel_requested`."""
        self.asked = reason
        if self.handler.is_async:
            self.cancel(Why.CANCELLED)


class InHand(Protocol):
    """`asked`: who asked for the item to be cancelled, and why; "" if nobody did."""

    asked: str


current: contextvars.ContextVar[Run] = contextvars.ContextVar("redrive_current_run")
received: contextvars.ContextVar[InHand] = contextvars.ContextVar("redrive_received")
"""What a loop of a door works on, where no worker runs."""


def cancel_requested() -> str:
    """In a handler: who asked for the item to be cancelled, and why; "" if nobody did.

    A handler that raises after that, whatever it raises, is cancelled; one that returns is done.
    """
    in_hand: InHand | None = current.get(None) or received.get(None)
    return "" if in_hand is None else in_hand.asked


def keep_output(data: bytes | str) -> None:
    """In a handler: record this with the current attempt, however it ends, instead of what was kept before.

    Of more than OUTPUT_LIMIT bytes the middle is left out. A crash of the process loses it, and a queue that is
    encrypted does not keep it. Raises ConfigError outside of a handler.
    """
    run = current.get(None)
    if run is None:
        hint = "call it in a function that app.handler registered, or in what that calls"
        raise ConfigError("not inside a handler", field="keep_output", hint=hint)
    run.offered = _bounded(_encoded(data))


def _encoded(data: object) -> bytes:
    if isinstance(data, str):
        return data.encode(errors="backslashreplace")
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "encode it first, as with json.dumps"
    raise ConfigError(f"must be bytes or str, got {type(data).__name__}", field="output", hint=hint)


def _bounded(data: bytes) -> bytes:
    """Half of the limit from each end, and no character cut in two: what was text stays text."""
    if len(data) <= OUTPUT_LIMIT:
        return data
    start, end = OUTPUT_LIMIT // 2, len(data) - OUTPUT_LIMIT // 2
    while data[start] & 0xC0 == 0x80 and start > OUTPUT_LIMIT // 2 - 3:
        start -= 1
    while data[end] & 0xC0 == 0x80 and end < len(data) - OUTPUT_LIMIT // 2 + 3:
        end += 1
    return b"%b\n[%d bytes were left out]\n%b" % (data[:start], end - start, data[end:])


class Runner:
    """Async handlers run in the loop, sync handlers in threads with the context copied."""

    def __init__(
        self,
        clock: Clock,
        policies: Policies,
        *,
        threads: int,
        frames: bool,
        max_result: int,
        thread_freed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._policies = policies
        self._frames = frames
        self._max_result = max_result
        self._thread_freed = thread_freed
        self._caller = Caller(threads)
        self.busy_threads: Counter[str] = Counter()

    def close(self) -> None:
        self._caller.close()

    async def handle(self, run: Run) -> o.Outcome | None:
        """Never raises. None: the lease is lost, there is nothing to say to the store."""
        try:
            handler = run.handler
            if run.why is not None or run.asked:
                return self._stopped(run)
            max_age = self._policies.plain(run.item, handler).max_age
            if max_age is not None and run.age(run.started) >= max_age and await self._too_old(run):
                return self._expired(run.policy.max_age)
            try:
                arguments = handler.signature.arguments(run.item)
            except PayloadError as error:
                return await self._useless(run, error, "payload")
            current.set(run)
            if handler.is_async:
                with parent_only():
                    value = await handler.function(**arguments)
                return o.Done() if value is None else await self._returned(run, value)
            return await self._in_thread(run, arguments)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises, SystemExit included, is its failure
            return await self._judged(run, error)

    async def _choose(self, run: Run) -> Policy:
        """The policy that judges the end of the run, as it is now."""
        run.over = True
        try:
            run.choice = await self._policies.at_failure(run.item, run.handler)
        except asyncio.CancelledError:
            run.choice = self._policies.of(run.item, run.handler)
        return run.choice.policy

    async def _too_old(self, run: Run) -> bool:
        """By the policy as it is now, before it kills."""
        run.choice = await self._policies.at_failure(run.item, run.handler)
        max_age = run.policy.max_age
        return max_age is not None and run.age(run.started) >= max_age

    async def _judged(self, run: Run, error: BaseException) -> o.Outcome | None:
        try:
            if run.why is Why.LOST or (run.why is Why.SHUTDOWN and not isinstance(error, signals.Snooze)):
                return self._stopped(run)
            if run.asked and not isinstance(error, signals.Dead):
                return await self._obeyed(run, error)
            if isinstance(error, signals.Signal):
                return await self._signalled(run, error)
            if run.why is Why.TIMEOUT and isinstance(error, asyncio.CancelledError):
                limit = format_duration(run.handler.timeout or 0)
                error = TimeoutError(f"the handler ran longer than its timeout of {limit}")
            return await self._failed(run, error)
        except BaseException as fault:  # noqa: BLE001 - a fault of ours must not keep the item for ever
            text = f"redrive could not judge the attempt: {type(fault).__name__}"
            return o.Fail(plain_failure("redrive.InternalError", text, "internal"))

    async def _in_thread(self, run: Run, arguments: dict[str, Any]) -> o.Outcome | None:
        queue = run.handler.queue

        def freed(_: Called) -> None:
            self.busy_threads[queue] -= 1
            self._thread_freed()

        # A thread cannot be cancelled: its slot stays taken until it ends, however the run was judged.
        called = self._caller.in_thread(partial(run.handler.function, **arguments), freed)
        self.busy_threads[queue] += 1
        value, error = await called
        return await (self._judged(run, error) if error is not None else self._returned(run, value))

    async def _returned(self, run: Run, value: object) -> o.Outcome:
        if isinstance(value, signals.Signal):
            return await self._signalled(run, value)
        limit = run.handler.max_result
        try:
            return o.Done(codec.dump_result(value, limit=self._max_result if limit is None else limit))
        except PayloadError as error:
            # The work is done: running it again for the sake of its result would do it twice.
            return await self._useless(run, error, "result")

    async def _useless(self, run: Run, error: PayloadError, reason: str) -> o.Outcome:
        return o.Dead(failure_of(error, await self._choose(run), frames=False), reason)

    async def _failed(self, run: Run, error: BaseException) -> o.Outcome:
        failure = failure_of(error, await self._choose(run), frames=self._frames)
        # An error object that is raised again would carry this run's frames along; and frames keep locals alive.
        error.__traceback__ = None
        after = hint_of(error, self._clock.now())
        return o.Limited(failure, after) if failure.action == "limit" else o.Fail(failure, after)

    async def _signalled(self, run: Run, signal: signals.Signal) -> o.Outcome:
        if isinstance(signal, signals.Snooze):
            return o.Snooze(signal.after, signal.note)
        if isinstance(signal, signals.Cancel):
            return o.Cancelled(text_of(signal))
        source = signal.__cause__ or signal
        failure = failure_of(source, await self._choose(run), frames=self._frames)
        if isinstance(signal, signals.Dead):
            return o.Dead(failure, signal.letter_reason)
        return o.Retry(failure, signal.after if isinstance(signal, signals.Retry) else None)

    async def _obeyed(self, run: Run, error: BaseException) -> o.Outcome:
        """Whatever it raised when it was asked to stop: it stopped. What it said beyond that is kept as evidence."""
        if isinstance(error, asyncio.CancelledError | signals.Snooze):
            return o.Cancelled(run.asked)
        failure = failure_of(error, await self._choose(run), frames=self._frames)
        error.__traceback__ = None
        return o.Cancelled(run.asked, failure)

    def _stopped(self, run: Run) -> o.Outcome | None:
        if run.why is Why.LOST:
            return None
        if run.asked and run.why is not Why.SHUTDOWN:
            return o.Cancelled(run.asked)
        return o.Release("the worker stopped")

    def _expired(self, max_age: Millis | None) -> o.Outcome:
        text = f"older than max_age {format_duration(max_age or 0)} before it could run"
        return o.Expired(plain_failure("redrive.Expired", text, "expired"))
