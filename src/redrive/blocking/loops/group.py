"""A supervisor of blocking loops in one process: a thread each, a watchdog, health probes over HTTP, one shutdown."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, runtime_checkable

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.lifecycle import Living
from redrive.blocking.loops.shutdown import ShutdownCoordinator
from redrive.blocking.loops.stop import Stop
from redrive.blocking.loops.watchdog import Watchdog, kill_this_process
from redrive.core.classify import qualified_name
from redrive.core.quantity import shown
from redrive.core.validation import check_clock, check_function, check_seconds, check_timeout, check_type
from redrive.errors import InvalidParameterError
from redrive.observe.endpoint import HEALTHY, LOOPBACK, UNHEALTHY, HealthServer, Report
from redrive.observe.logs import log
from redrive.observe.metrics import Metrics
from redrive.stores.clock import Clock, SystemClock

logger = logging.getLogger("redrive.loops")

LONGEST_PAUSE = 60.0
"""Seconds at most before a crashed loop is restarted. After a run longer than this the pause is 1 s again."""
WAKE_EVERY = 1.0
"""Seconds after which the main thread wakes up for signals."""
STALE_AFTER = 720.0
"""Seconds without a heartbeat after which a loop is not ready, if there is no watchdog."""
STOP_AGAIN = 0.1
"""Seconds until `shutdown` of a loop is called again: the loop may not have started before the first call."""


@runtime_checkable
class Runnable(Protocol):
    """A loop of a group."""

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = ...,
        wait_time_seconds: float = ...,
    ) -> None:
        """Work in this thread until `shutdown` is called, or until there is nothing more to do."""

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Tell it to stop, and wait; True if it has stopped by then. One that does not run has stopped."""

    @property
    def running(self) -> bool: ...

    @property
    def heartbeat(self) -> Heartbeat:
        """Beaten at least once in each round, so that others see that it is not stuck."""


class Member:
    def __init__(self, loop: Runnable, name: str) -> None:
        self.loop = loop
        self.name = name
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        """Before the start: the age of the heartbeat is counted from now on."""
        if self.alive:
            message = f"{self.name} still runs: it did not stop in time when the group was stopped"
            raise InvalidParameterError(message, field="loops", hint="wait for it, or start a new process")
        self.error = None
        self.loop.heartbeat.beat()

    def start(self, live: Callable[[Member, Mapping[str, Any]], None], options: Mapping[str, Any]) -> None:
        # A daemon thread: a loop that does not stop in time must not keep the process from ending.
        self._thread = threading.Thread(target=live, args=(self, options), name=f"redrive-{self.name}", daemon=True)
        self._thread.start()

    def end_by(self, deadline: float) -> threading.Thread:
        """Call its `shutdown` in a thread of its own, until it has stopped or the deadline is over."""
        ender = threading.Thread(target=self._end, args=(deadline,), name=f"redrive-end-{self.name}", daemon=True)
        ender.start()
        return ender

    def _end(self, deadline: float) -> None:
        thread = self._thread
        while thread is not None and thread.is_alive():
            left = max(0.0, deadline - time.monotonic())
            try:
                self.loop.shutdown(timeout=left)
            except Exception as error:  # noqa: BLE001 - a loop of any kind; it is called again
                text = "Shutdown of a loop failed"
                log(logger, logging.ERROR, text, loop=self.name, error=error)
            if not left:
                return
            thread.join(min(left, STOP_AGAIN))

    def log_crash(self, *, restart_in: float | None) -> None:
        error = self.error
        if error is None:
            return
        kind = qualified_name(type(error))
        log(
            logger,
            logging.CRITICAL,
            "Loop crashed",
            loop=self.name,
            error=error,
            error_type=kind,
            restart_in_seconds=restart_in,
        )
        logger.debug("%s crashed", self.name, exc_info=error)

    def report(self, stale: float) -> Report:
        running, age = bool(self.loop.running), self.loop.heartbeat.elapsed()
        status = HEALTHY if running and age <= stale else UNHEALTHY
        return {"name": self.name, "status": status, "running": running, "heartbeat_age_seconds": round(age, 3)}


def members_of(loops: Sequence[Runnable]) -> list[Member]:
    """Named after the loop's name or class; a number is added to a name that occurs twice."""
    check_type(loops, Sequence, field="loops", hint="give a list, also of one loop")
    if not loops:
        raise InvalidParameterError("the list is empty", field="loops", hint="give at least one loop")
    names: list[str] = []
    given: Sequence[object] = loops
    for loop in given:
        if not isinstance(loop, Runnable):
            hint = "a loop has run, shutdown, running and heartbeat; see Runnable"
            raise InvalidParameterError(f"{shown(loop)} is not a loop", field="loops", hint=hint)
        name = base = str(getattr(loop, "name", "") or type(loop).__name__)
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    if len({id(loop) for loop in loops}) < len(loops):
        raise InvalidParameterError("a loop is listed twice", field="loops", hint="make a second one")
    return [Member(loop, name) for loop, name in zip(loops, names, strict=True)]


class LoopSupervisor(Living):
    """Runs until SIGTERM, SIGINT or `trigger_shutdown`, or until no loop runs any more.

    A loop that crashes stops the group, and `run` raises its error; with `restart=True` the loop is restarted instead,
    after 1 s, 2 s, … 60 s. All loops are stopped at the same time, and share `shutdown_timeout` seconds.
    `metrics` are exported by the health server.
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
        restart: bool = False,
        clock: Clock | None = None,
        kill: Callable[[], None] = kill_this_process,
        metrics: Iterable[Metrics] = (),
    ) -> None:
        check_seconds(shutdown_timeout, field="shutdown_timeout")
        check_clock(clock)
        check_function(kill, field="kill", hint="leave it out to kill this process")
        super().__init__("group")
        self._members = members_of(loops)
        self._shutdown_timeout = shutdown_timeout
        self.threshold = watchdog_threshold
        self._restart = restart
        self._clock = SystemClock() if clock is None else clock
        self._asked = False
        self._ended: queue.SimpleQueue[Member | None] = queue.SimpleQueue()
        self._stop = Stop()
        self._stopped = True
        self._health = (
            None
            if health_port is None
            else HealthServer(self.health, port=health_port, host=health_host, metrics=metrics)
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

    def supervise(self, options: Mapping[str, Any], *, install_signals: bool) -> None:
        """Run all loops with these options, and return when they have stopped or the shutdown timeout is over."""
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
            check_timeout(timeout)
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

    def _live(self, member: Member, options: Mapping[str, Any]) -> None:
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
            log(logger, logging.CRITICAL, text, loops=", ".join(left), timeout=self._shutdown_timeout)

    def _forget(self) -> None:
        """A shutdown of this run does not stop the next one."""
        self._asked = False

    def _listen(self, after: ExitStack) -> None:
        if threading.current_thread() is not threading.main_thread():
            text = "Signals are not listened to: the group does not run in the main thread"
            log(logger, logging.WARNING, text, loops=", ".join(member.name for member in self._members))
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
        """The answer of /health/ready."""
        stale = STALE_AFTER if self.threshold is None else self.threshold
        loops = [member.report(stale) for member in self._members]
        down = self._stop.is_set() or any(found["status"] != HEALTHY for found in loops)
        return {"status": UNHEALTHY if down else HEALTHY, "loops": loops}
