"""A process whose loops are stuck is worse than one that is gone: what it holds is held, and nobody restarts it.

So it is killed. Leases expire, messages come back, and whoever supervises the process starts a new one.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.stop import Stop
from redrive.mailboxes.life.heartbeat import Heartbeat
from redrive.mailboxes.logs import logger
from redrive.stores.clock import Clock, SystemClock

LAST_WORDS = 5.0
"""Seconds for the log. The stuck thread may be stuck in it."""


def kill_this_process() -> None:
    # Where its threads are stuck is what somebody will want to know, and nobody can ask a killed process.
    with suppress(Exception):
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


class Watchdog:
    """Kills the process when one of the heartbeats is silent for longer than `threshold` seconds.

    `heartbeats`: by name; a function if they come and go. It looks each `interval` seconds, and at least three times in
    a threshold. `kill` is what it does, once.
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
            if not limits.is_number(value) or not value > 0:
                hint = "give seconds, more than 0; without a threshold (None) there is no watchdog"
                raise InvalidParameterError(f"{shown(value)} is no time to wait", field=field, hint=hint)
        if not callable(heartbeats):
            limits.kind(heartbeats, Mapping, field="heartbeats", hint="give them by name, or a function that does")
        limits.clock(clock)
        limits.function(kill, field="kill", hint="leave it out: it then kills this process")
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
        """Who is silent for too long, and for how many seconds."""
        silences = {name: heartbeat.elapsed() for name, heartbeat in self._heartbeats().items()}
        return {name: silence for name, silence in silences.items() if silence > self._threshold}

    def _watch(self, stop: Stop) -> None:
        looked = self._clock.monotonic()
        while not stop.wait(self._interval, self._clock):
            last, looked = looked, self._clock.monotonic()
            # In a process that stood still as a whole, as a frozen container does, the loops could not beat either.
            stood_still = looked - last > self._threshold * 1000
            stalled = {} if stood_still else self.stalled()
            if stalled:
                self._say(stalled)
                self._kill()
                return

    def _say(self, stalled: dict[str, float]) -> None:
        who = ", ".join(f"{name} for {silence:.0f} s" for name, silence in stalled.items())
        text = f"no heartbeat of {who} (at most {self._threshold:g} s are borne): this process is killed"
        facts = {"event": "Stalled", "stalled": stalled, "threshold": self._threshold}

        def log() -> None:
            logger.critical("%s", text, extra={"redrive": facts})

        words = threading.Thread(target=log, name="redrive-watchdog-log", daemon=True)
        words.start()
        words.join(LAST_WORDS)
