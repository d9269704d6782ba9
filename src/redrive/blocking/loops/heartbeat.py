"""Heartbeat: a loop beats, and a watchdog or a probe reads how long ago the last beat was."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from redrive.core.validation import check_clock, check_function
from redrive.stores.clock import Clock, SystemClock

Callback = Callable[[], None]

logger = logging.getLogger("redrive.loops")


class Heartbeat:
    """The first beat is when it is made. Any thread may use it.

    A handler that takes long should beat now and then: a loop without beats counts as stuck.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        check_clock(clock)
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._callbacks: tuple[Callback, ...] = ()
        self._last = self._clock.monotonic()

    def beat(self) -> None:
        """Calls the callbacks in this thread. Their errors are logged and not raised."""
        self._last = self._clock.monotonic()
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                logger.exception("a callback of a heartbeat failed: %s", callback_name(callback))

    def elapsed(self) -> float:
        """Seconds since the last beat."""
        return (self._clock.monotonic() - self._last) / 1000

    def add_callback(self, callback: Callback) -> None:
        check_function(callback, field="callback", hint="give a function without parameters")
        with self._lock:
            self._callbacks = (*self._callbacks, callback)

    def remove_callback(self, callback: Callback) -> None:
        """An unknown callback is ignored."""
        with self._lock:
            left = list(self._callbacks)
            if callback in left:
                left.remove(callback)
            self._callbacks = tuple(left)


def callback_name(function: object) -> str:
    """With its class, as in `LoopGroup.trigger_shutdown`; some callable objects have no name."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))
