"""Watchdog: kills the process when the heartbeat of a loop is too old.

A stuck process keeps its leases and is not restarted. When it is killed, leases expire, messages are delivered again,
and the supervisor starts a new process.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.stop import Stop
from redrive.core.quantity import shown
from redrive.core.validation import check_clock, check_function, check_type, is_number
from redrive.errors import InvalidParameterError
from redrive.stores.clock import Clock, SystemClock

logger = logging.getLogger("redrive.loops")

LOG_TIMEOUT = 5.0
"""Seconds for the log line. The stuck thread may hold the lock of a log handler."""


def kill_this_process() -> None:
    # The log then shows where the threads are stuck.
    with suppress(Exception):
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


class Watchdog:
    """Calls `kill`, once, when one of the heartbeats is older than `threshold` seconds.

    `heartbeats`: by name, or a function that returns them. They are checked every `interval` seconds, and at least
    three times in a threshold.
    """

    def __init__(
        self,
        heartbeats: Mapping[str, Heartbeat] | Callable[[], Mapping[str, Heartbeat]],
        *,
        threshold: float = 720.0,
        interval: float = 60.0,
        clock: Clock | None = None,
        kill: Callable[[], None] = kill_this_process,
    ) -> None:
        for field, value in (("watchdog_threshold", threshold), ("watchdog_interval", interval)):
            if not is_number(value) or not value > 0:
                hint = "use a number of seconds; watchdog_threshold=None turns the watchdog off"
                raise InvalidParameterError(f"must be greater than 0, got {shown(value)}", field=field, hint=hint)
        if not callable(heartbeats):
            check_type(
                heartbeats, Mapping, field="heartbeats", hint="give a mapping by name, or a function that returns one"
            )
        check_clock(clock)
        check_function(kill, field="kill", hint="leave it out to kill this process")
        self._heartbeats = heartbeats if callable(heartbeats) else lambda: heartbeats
        self._threshold = threshold
        self._interval = min(interval, threshold / 3)
        self._clock = SystemClock() if clock is None else clock
        self._kill = kill
        self._stop: Stop | None = None

    def start(self) -> None:
        if self._stop is None:
            self._stop = Stop()
            threading.Thread(target=self._watch, args=(self._stop,), name="redrive-watchdog", daemon=True).start()

    def stop(self) -> None:
        if self._stop is not None:
            self._stop.set()
            self._stop = None

    def stalled(self) -> dict[str, float]:
        """Names of heartbeats that are too old, with their age in seconds."""
        ages = {name: heartbeat.elapsed() for name, heartbeat in self._heartbeats().items()}
        return {name: age for name, age in ages.items() if age > self._threshold}

    def _watch(self, stop: Stop) -> None:
        checked = self._clock.monotonic()
        while not stop.wait(self._interval, self._clock):
            last, checked = checked, self._clock.monotonic()
            # In a process that was suspended as a whole, such as a frozen container, the loops could not beat either.
            suspended = checked - last > self._threshold * 1000
            stalled = {} if suspended else self.stalled()
            if stalled:
                self._log(stalled)
                self._kill()
                return

    def _log(self, stalled: dict[str, float]) -> None:
        names = ", ".join(f"{name} for {age:.0f} s" for name, age in stalled.items())
        text = f"no heartbeat of {names} (the threshold is {self._threshold:g} s): killing this process"
        facts = {"event": "Stalled", "stalled": stalled, "threshold": self._threshold}

        def log() -> None:
            logger.critical("%s", text, extra={"redrive": facts})

        thread = threading.Thread(target=log, name="redrive-watchdog-log", daemon=True)
        thread.start()
        thread.join(LOG_TIMEOUT)
