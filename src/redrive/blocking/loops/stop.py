"""A stop event that threads wait for by a clock, and event loops by `heard_in`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from redrive.core.item import Millis
from redrive.stores.clock import Clock, SystemClock


class Stop:
    """Set once, by any thread. Threads wait for it by `wait`, event loops by `heard_in`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        with self._lock:
            self._event.set()
            listeners = tuple(self._listeners)
        for notify in listeners:
            notify()

    def wait(self, seconds: float | None = None, clock: Clock | None = None) -> bool:
        """True if it is set before so many seconds are over on the clock."""
        if self._event.is_set() or seconds is None or clock is None or isinstance(clock, SystemClock):
            return self._event.wait(seconds)
        # Time that a test moves has sleepers only in event loops.
        return asyncio.run(self._wait_on(clock, round(seconds * 1000)))

    async def _wait_on(self, clock: Clock, duration: Millis) -> bool:
        with self.heard_in(asyncio.get_running_loop()) as event:
            return await clock.wait(event, duration)

    @contextmanager
    def heard_in(self, loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
        """An event of this loop, which is set when this is; at once if it was before."""
        event = asyncio.Event()

        def notify() -> None:
            # A loop that has ended has no listener left.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

        with self._lock:
            if self._event.is_set():
                event.set()
            self._listeners.append(notify)
        try:
            yield event
        finally:
            with self._lock:
                self._listeners.remove(notify)
