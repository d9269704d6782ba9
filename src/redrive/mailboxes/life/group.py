"""Several loops in one process: each in a thread, with a watchdog, health probes over HTTP, and one shutdown.

LoopGroup(loops=[main_loop, eval_loop, dlq_consumer], health_port=8080).run()
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError
from redrive.mailboxes import logs
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.boxes.stop import Stop
from redrive.mailboxes.life.health import depth_reports
from redrive.mailboxes.life.heartbeat import Heartbeat
from redrive.mailboxes.life.living import Living
from redrive.mailboxes.life.members import Member, members_of
from redrive.mailboxes.life.runnable import Runnable
from redrive.mailboxes.life.shutdown import ShutdownCoordinator
from redrive.mailboxes.life.watchdog import Watchdog, kill_this_process
from redrive.mailboxes.metrics import default_metrics
from redrive.observe.endpoint import DEGRADED, HEALTHY, LOOPBACK, UNHEALTHY, HealthServer, Report
from redrive.observe.metrics import AskedInThread
from redrive.stores.clock import Clock, SystemClock

LONGEST_PAUSE = 60.0
"""Seconds at most before a crashed loop is restarted. After a run longer than this the pause is 1 s again."""
WAKE_EVERY = 1.0
"""Seconds after which the main thread wakes up for signals."""
STALE_AFTER = 720.0
"""Seconds without a heartbeat after which a loop is not ready, if there is no watchdog."""


class LoopGroup(Living):
    """Runs until SIGTERM, SIGINT or `trigger_shutdown`, or until no loop runs any more.

    A loop that crashes stops the group, and `run` raises its error; with `restart=True` the loop is restarted instead,
    after 1 s, 2 s, … 60 s. All loops are stopped at the same time, and have `shutdown_timeout` seconds together.
    `dead_letters` are mailboxes whose depth /health/ready reports, besides those of the loops themselves.
    """

    def __init__(
        self,
        loops: Sequence[Runnable],
        *,
        shutdown_timeout: float = 30.0,
        health_port: int | None = None,
        health_host: str = LOOPBACK,
        watchdog_threshold: float | None = 720.0,
        watchdog_interval: float = 60.0,
        dead_letters: Iterable[Mailbox[Any, Any]] = (),
        dlq_threshold: int = 100,
        restart: bool = False,
        clock: Clock | None = None,
        kill: Callable[[], None] = kill_this_process,
    ) -> None:
        if not limits.is_number(shutdown_timeout) or not 0 <= shutdown_timeout <= limits.LONGEST:
            hint = f"use 0 to {limits.LONGEST:,} seconds; 0 does not wait"
            message = f"{shown(shutdown_timeout)} is out of range"
            raise InvalidParameterError(message, field="shutdown_timeout", hint=hint)
        limits.clock(clock)
        limits.function(kill, field="kill", hint="leave it out to kill this process")
        super().__init__("group")
        self._members = members_of(loops)
        self._shutdown_timeout = shutdown_timeout
        self._threshold = watchdog_threshold
        self._dlq_threshold = limits.threshold(dlq_threshold, field="dlq_threshold")
        self._restart = restart
        self._clock = SystemClock() if clock is None else clock
        self._depths = _depths(loops, dead_letters)
        self._asked = False
        self._ended: queue.SimpleQueue[Member | None] = queue.SimpleQueue()
        self._stop = Stop()
        self._stopped = True
        self._health = (
            None
            if health_port is None
            else HealthServer(self.health, port=health_port, host=health_host, metrics=[default_metrics()])
        )
        self._watchdog = (
            None
            if watchdog_threshold is None
            else Watchdog(
                self._watched, threshold=watchdog_threshold, interval=watchdog_interval, clock=clock, kill=kill
            )
        )

    @property
    def health_port(self) -> int | None:
        """The port on which probes are answered now; None if they are not."""
        return None if self._health is None else self._health.port

    def run(
        self, *, install_signals: bool = True, visibility_timeout: float = 1800, wait_time_seconds: float = 30
    ) -> None:
        """Run all loops, and return when they have stopped or the shutdown timeout is over."""
        visibility = limits.working_visibility(visibility_timeout)
        limits.wait_time(wait_time_seconds)
        if self._threshold is not None and wait_time_seconds >= self._threshold:
            message = f"{wait_time_seconds:g} s without a beat reach the watchdog's threshold of {self._threshold:g} s"
            raise InvalidParameterError(message, field="wait_time_seconds", hint="make it less than watchdog_threshold")
        options = {"visibility_timeout": visibility, "wait_time_seconds": wait_time_seconds}
        with self._life.running(), ExitStack() as after:
            after.callback(self._forget)
            self._stop, self._ended = Stop(), queue.SimpleQueue()
            for member in self._members:
                member.begin()
            if self._health is not None:
                self._health.start()
                after.callback(self._health.stop)
            if self._watchdog is not None:
                self._watchdog.start()
                after.callback(self._watchdog.stop)
            if install_signals:
                self._listen(after)
            # Undone last to first: probes and signals are handled while the loops stop.
            after.callback(self._stop_all)
            for member in self._members:
                member.start(self._live, options)
            self._tend()
        for member in self._members:
            if member.error is not None:
                raise member.error

    def trigger_shutdown(self) -> None:
        """Stop, without waiting. A group that does not run yet stops as soon as it does."""
        self._asked = True
        self._ended.put(None)

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """Stop, and wait; True if every loop has stopped. By default it waits for `shutdown_timeout`."""
        if timeout is not None:
            limits.patience(timeout)
        if not self._life.alive:
            return self._stopped
        self.trigger_shutdown()
        ended = self._life.shutdown(self._shutdown_timeout + 1 if timeout is None else timeout)
        return ended and self._stopped

    # --- the loops ---

    def _tend(self) -> None:
        """Until shutdown is triggered, a loop crashes for good, or all loops have ended."""
        living = len(self._members)
        while living and not self._asked:
            try:
                # A signal that comes just before this thread sleeps is handled when it wakes.
                ended = self._ended.get(timeout=WAKE_EVERY)
            except queue.Empty:
                continue
            if ended is None or ended.error is not None:
                return
            living -= 1

    def _live(self, member: Member, options: dict[str, Any]) -> None:
        """Runs in the thread of the loop."""
        stop, ended, pause = self._stop, self._ended, 0.0
        while not stop.is_set():
            began = self._clock.monotonic()
            try:
                member.error = None
                member.loop.run(**options)
                break
            except BaseException as error:  # noqa: BLE001 - raised by `run`, in the main thread
                member.error = error
            lived = (self._clock.monotonic() - began) / 1000
            pause = min(pause * 2, LONGEST_PAUSE) if pause > 0 and lived < LONGEST_PAUSE else 1.0
            member.log_crash(restart_in=pause if self._restart else None)
            if not self._restart or stop.wait(pause, self._clock):
                break
        ended.put(member)

    def _stop_all(self) -> None:
        """All at the same time, with one timeout: a loop that hangs must not keep the others from stopping."""
        deadline = time.monotonic() + self._shutdown_timeout
        self._stop.set()
        enders = [member.end_by(deadline) for member in self._members if member.alive]
        for ender in enders:
            ender.join(max(0.0, deadline - time.monotonic()))
        left = [member.name for member in self._members if member.alive]
        self._stopped = not left
        if left:
            text = "Loops did not stop in time; their messages are delivered again when the leases expire"
            logs.say(logging.CRITICAL, text, loops=", ".join(left), timeout=self._shutdown_timeout)

    def _forget(self) -> None:
        """A shutdown of this run does not stop the next one."""
        self._asked = False

    def _listen(self, after: ExitStack) -> None:
        if threading.current_thread() is not threading.main_thread():
            text = "Signals are not listened to: the group does not run in the main thread"
            logs.say(logging.WARNING, text, loops=", ".join(member.name for member in self._members))
            return
        if ShutdownCoordinator.get() is None:
            after.callback(ShutdownCoordinator.reset)
        coordinator = ShutdownCoordinator.install()
        coordinator.register(self.trigger_shutdown)
        after.callback(coordinator.unregister, self.trigger_shutdown)

    # --- health ---

    def _watched(self) -> dict[str, Heartbeat]:
        """Without loops that have ended or wait for a restart: they have no heartbeat and are not stuck."""
        return {member.name: member.loop.heartbeat for member in self._members if member.alive and member.loop.running}

    def health(self) -> Report:
        """The answer of /health/ready: the loops, the depth of the dead letters, and the status of both."""
        stale = STALE_AFTER if self._threshold is None else self._threshold
        loops = [member.report(stale) for member in self._members]
        depths = depth_reports(self._depths, self._dlq_threshold)
        status = HEALTHY
        if any(found["status"] != HEALTHY for found in depths):
            status = DEGRADED
        if self._stop.is_set() or any(found["status"] != HEALTHY for found in loops):
            status = UNHEALTHY
        return {"status": status, "loops": loops, "dlq": depths}


def _depths(loops: Sequence[Runnable], more: Iterable[Mailbox[Any, Any]]) -> dict[str, AskedInThread[int]]:
    """By name: each mailbox once, though a loop fills it and a consumer empties it."""
    limits.kind(more, Iterable, field="dead_letters", hint="give a list of mailboxes")
    more = tuple(more)
    for each in more:
        limits.kind(each, Mailbox, field="dead_letters", hint="use open_mailbox")
    own = [mailbox for loop in loops for mailbox in getattr(loop, "dead_letters", ())]
    return {mailbox.name: AskedInThread(mailbox.approximate_count) for mailbox in (*own, *more)}
