"""Time that passes when the test says so.

    clock = FakeClock()
    app = Redrive("memory:", clock=clock)
    clock.advance("30s")        # a jump: leases of 30 seconds are over now
    await clock.tick("5m")      # the same for running tasks: stops at each sleeper's time and lets it act
    await drain(app)            # a worker that lets as much time pass as its items need

A sleeper wakes when time reaches it, never by itself. Nobody but the test, or `drain` for it, moves the time; with
`autoadvance=True` it also moves by itself: whenever the loop has nothing left to do but to sleep, it jumps to the next
sleeper. Time that moves by itself does not pass while something is `busy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import threading
from collections.abc import Callable, Iterator, Sized
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NamedTuple

from redrive.core import durations
from redrive.core.item import Instant, Millis
from redrive.errors import ConfigError

START: Instant = 1_767_225_600_000
"""The first of January 2026 in UTC."""

TURNS = 1_000
"""At most so many turns of the loop are given to tasks to act before time moves on, should they never come to rest."""

QUIET = 2
"""So many turns with nothing to run are rest: between two turns the loop also looks for news of sockets and threads."""


STILL_AFTER = 5.0
"""Seconds of real time after which a test that waits for something busy says what it waits for."""

log = logging.getLogger("redrive.testing")


class _Busy:
    """Something that must end, or go to sleep on the clock, before time passes by itself."""

    def __init__(self, what: str) -> None:
        self.what = what


_busy_here: ContextVar[tuple[_Busy, ...]] = ContextVar("redrive_busy_here", default=())


class _Sleeper(NamedTuple):
    when: Millis
    number: int
    future: asyncio.Future[None]
    busy: tuple[_Busy, ...]

    def wake(self) -> None:
        _wake(self.future)


class FakeClock:
    """A `stores.base.Clock` that starts at the first of January 2026, or at `start` (milliseconds since the epoch).

    Plain numbers are milliseconds, as everywhere below the public API. Time may be read from any thread, and sleepers
    of several loops are woken each in its own.

    `autoadvance` sees only what happens in the loop: while a thread works or a socket answers, the loop looks idle and
    time would run away from them, unless they are `busy`. It stops at every sleeper, and a worker's own chores sleep
    for seconds: days of retries take it long. `drain` has neither limit.
    """

    def __init__(self, start: Instant = START, *, autoadvance: bool = False) -> None:
        self._wall = start
        self._monotonic: Millis = 0
        self._lock = threading.Lock()
        self._heap: list[_Sleeper] = []
        self._number = 0
        self._busy: set[_Busy] = set()
        self._watchers: set[asyncio.Future[None]] = set()
        self._autoadvance = autoadvance
        self._moving: asyncio.AbstractEventLoop | None = None

    def now(self) -> Instant:
        return self._wall

    def monotonic(self) -> Millis:
        return self._monotonic

    async def sleep(self, duration: Millis) -> None:
        if duration <= 0:
            await asyncio.sleep(0)
            return
        sleeper = self._register(duration)
        try:
            await sleeper
        finally:
            sleeper.cancel()

    async def wait(self, event: asyncio.Event, timeout: Millis) -> bool:
        if event.is_set() or timeout <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        sleeper = self._register(timeout)
        signal = asyncio.ensure_future(event.wait())
        either: set[asyncio.Future[Any]] = {sleeper, signal}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            signal.cancel()
        return event.is_set()

    @property
    def sleepers(self) -> int:
        """How many sleep or wait now."""
        with self._lock:
            return sum(not sleeper.future.done() for sleeper in self._heap)

    @property
    def next_in(self) -> Millis | None:
        """How long until the next sleeper wakes; None if nobody sleeps."""
        with self._lock:
            first = self._first()
            return None if first is None else max(0, first.when - self._monotonic)

    def advance(self, duration: Millis | str | timedelta) -> None:
        """Jump. Sleepers that are due are woken in the order of their times, but all of them see the new time."""
        self._move_to(self._monotonic + _millis(duration))

    def jump_wall(self, duration: Millis) -> None:
        """Set the wall clock forward, or back with a negative number. Nobody wakes: sleeping is on monotonic time."""
        self._wall += duration

    async def tick(self, duration: Millis | str | timedelta = 0) -> None:
        """Let time pass: stop at each sleeper's time, and let whatever wakes act (and sleep again) before going on."""
        target = self._monotonic + _millis(duration)
        await self.rest()
        while (pause := self.next_in) is not None and self._monotonic + pause <= target:
            self._move_to(self._monotonic + pause)
            await self.rest()
        self._move_to(max(target, self._monotonic))
        await self.rest()

    @contextlib.contextmanager
    def busy(self, what: str = "something") -> Iterator[None]:
        """While the block runs, time does not pass by itself; except while the block sleeps on this very clock.

        For work that the loop cannot see: a thread, a process, a socket.
        """
        here = _busy_here.get()
        end = self.begin_busy(what)
        try:
            yield
        finally:
            _busy_here.set(here)
            end()

    def begin_busy(self, what: str = "something") -> Callable[[], None]:
        """As `busy`, for what ends elsewhere: call the result then, from any thread.

        What sleeps in this context from now on, or in a copy of it, sleeps for this.
        """
        busy = _Busy(what)
        _busy_here.set((*_busy_here.get(), busy))
        with self._lock:
            self._busy.add(busy)

        def end() -> None:
            with self._lock:
                self._busy.discard(busy)
            self._stir()

        return end

    async def rest(self) -> None:
        """Until nothing more can happen without time: no task of this loop has a turn left, and nothing is busy."""
        while True:
            await _turns()
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.add(watcher)
            try:
                if not self._at_work():
                    return
                await self._stirred(watcher)
            finally:
                self._watchers.discard(watcher)

    async def _stirred(self, watcher: asyncio.Future[None]) -> None:
        await asyncio.wait({watcher}, timeout=STILL_AFTER)
        if not watcher.done():
            names = sorted(busy.what for busy in self._at_work())
            log.warning("time has stood still for %d seconds, because of: %s", STILL_AFTER, ", ".join(names))
            await watcher

    @contextlib.contextmanager
    def driven(self) -> Iterator[None]:
        """In the block time moves only when it is told to, also with `autoadvance`."""
        was, self._autoadvance, self._moving = self._autoadvance, False, None
        try:
            yield
        finally:
            self._autoadvance = was
            if self.next_in is not None:
                self._start(asyncio.get_running_loop())

    def _at_work(self) -> set[_Busy]:
        """Who is busy and not asleep."""
        with self._lock:
            asleep = {busy for sleeper in self._heap if not sleeper.future.done() for busy in sleeper.busy}
            return self._busy - asleep

    def _stir(self) -> None:
        for watcher in tuple(self._watchers):
            _wake(watcher)

    def _register(self, duration: Millis) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        busy = _busy_here.get()
        with self._lock:
            self._number += 1
            sleeper = _Sleeper(self._monotonic + duration, self._number, loop.create_future(), busy)
            heapq.heappush(self._heap, sleeper)
        if busy:
            self._stir()
        self._start(loop)
        return sleeper.future

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._autoadvance and self._moving is not loop:
            self._moving = loop
            loop.call_soon(self._look, loop, _Rest(loop))

    def _first(self) -> _Sleeper | None:
        """The next who still sleeps. Under the lock."""
        while self._heap and self._heap[0].future.done():
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _move_to(self, target: Millis) -> None:
        due: list[_Sleeper] = []
        with self._lock:
            self._wall += target - self._monotonic
            self._monotonic = target
            while (first := self._first()) is not None and first.when <= target:
                due.append(heapq.heappop(self._heap))
        for sleeper in due:
            sleeper.wake()

    def _look(self, loop: asyncio.AbstractEventLoop, rest: _Rest) -> None:
        """Autoadvance, once in every turn of the loop: at rest, jump to the next sleeper; until nobody sleeps.

        Plain callbacks, not a task: nothing is left to be cancelled when a test ends with sleepers.
        """
        if self._moving is not loop:
            return
        pause = self.next_in
        if pause is None:
            self._moving = None
            return
        if rest.reached() and not self._at_work():
            self._move_to(self._monotonic + pause)
            rest = _Rest(loop)
        loop.call_soon(self._look, loop, rest)


class _Rest:
    """Asked once in every turn, says when the loop has nothing left to run. A loop that cannot tell gets all turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # What can run now. asyncio's own loops have it; there is no public way to ask.
        self._ready: Sized | None = getattr(loop, "_ready", None)
        self._turns = 0
        self._quiet = 0

    def reached(self) -> bool:
        self._turns += 1
        self._quiet = self._quiet + 1 if self._ready is not None and not self._ready else 0
        return self._quiet >= QUIET or self._turns >= TURNS


async def _turns() -> None:
    """Let the others act until they all wait for something."""
    rest = _Rest(asyncio.get_running_loop())
    while not rest.reached():  # noqa: ASYNC110 - the others' rest is no event that anybody could set
        await asyncio.sleep(0)


def _millis(duration: Millis | str | timedelta) -> Millis:
    millis = duration if isinstance(duration, int) else durations.parse(duration)
    if millis < 0:
        raise ConfigError(
            f"time does not go back: {millis} ms", field="duration", hint="jump_wall moves wall time back"
        )
    return millis


def _wake(future: asyncio.Future[None]) -> None:
    loop = future.get_loop()
    if _running_loop() is loop:
        _resolve(future)
        return
    # The loop may be closed, and with it went whoever slept.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
