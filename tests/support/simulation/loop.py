"""An event loop of simulated processes: virtual time, and a seeded scheduler that decides which process runs next.

Within one process callbacks run in the order in which they were scheduled, as asyncio promises. Between processes the
seed decides. When nothing can run, time jumps to the next timer. There are no threads, sockets or wall clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVarTuple, Unpack

from redrive.core.item import Instant, Millis
from redrive.stores.clock import SystemClock

Ts = TypeVarTuple("Ts")

START: Instant = 1_767_225_600_000
"""Wall time at the beginning: the first of January 2026 in UTC."""
MOST_STEPS = 400_000
"""A simulation that takes more callbacks than this never comes to rest."""


class Deadlock(Exception):
    """Nothing can run, and nothing will become due."""


class Livelock(Exception):
    """Callbacks go on and on."""


class Process:
    """A group of tasks that is paused, resumed and killed as a whole. `pid` is never used again."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = f"{name}#{pid}"
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.paused = False
        self.dead = False
        self.wall_offset: Millis = 0
        self.disturbed: list[tuple[Millis, Millis]] = []
        """When, and for how long, it was held up by something else than the ordinary delay of a message."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def kill(self) -> None:
        """Nothing of it runs any more: no `finally`, no last write."""
        self.dead = self.paused = True

    def disturbance(self, since: Millis, until: Millis) -> Millis:
        """For how long in all it was held up by what touches this span of time."""
        return sum(duration for when, duration in self.disturbed if when <= until and when + duration >= since)


PROCESS: ContextVar[Process] = ContextVar("simulated_process")


class SimulatedLoop(asyncio.BaseEventLoop):
    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count(1)
        self._steps = 0
        self.processes: list[Process] = []
        self.outside = self.process("outside")

    def process(self, name: str) -> Process:
        made = Process(len(self.processes) + 1, name)
        self.processes.append(made)
        return made

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.create_task(work, context=process.context.copy())

    def time(self) -> float:
        return self._now

    def millis(self) -> Millis:
        return round(self._now * 1000)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **rest: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, context=context, **rest)
        # Kept to the end: a task of a killed process must not be closed by the garbage collector, which would run it.
        self._process_of(copy_context() if context is None else context).tasks.append(task)
        return task

    def _process_of(self, context: Context) -> Process:
        return context.get(PROCESS, self.outside)

    def _enqueue(self, handle: asyncio.Handle) -> None:
        self._process_of(vars_of(handle)).ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def _run_once(self) -> None:
        """One callback, of a process that the seed chooses."""
        runnable = [process for process in self.processes if process.ready and not process.paused]
        if not runnable:
            self._pass_time()
            return
        process = runnable[0] if len(runnable) == 1 else runnable[int(self._dice.random() * len(runnable))]
        handle = process.ready.popleft()
        if not handle.cancelled():
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise Livelock(f"{MOST_STEPS} callbacks by {self._now:.3f} s of simulated time")
            handle._run()  # noqa: SLF001 - what every event loop calls

    def _pass_time(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock(f"nothing is due after {self._now:.3f} s of simulated time")
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._enqueue(heapq.heappop(self._timers)[2])


def vars_of(handle: asyncio.Handle) -> Context:
    context: Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way to it
    return context


class SimulatedClock(SystemClock):
    """The clock of one process: its wall time may be wrong and may jump; its monotonic time is everybody's."""

    def __init__(self, loop: SimulatedLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def now(self) -> Instant:
        return START + self._loop.millis() + self._process.wall_offset

    def monotonic(self) -> Millis:
        return self._loop.millis()
