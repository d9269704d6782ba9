"""Loops that do as they are told, in threads, and how a test waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.lifecycle import Life
from redrive.blocking.loops.stop import Stop
from redrive.mailboxes.loops.group import LoopGroup
from redrive.testing import FakeClock

SOON = 30.0
"""Seconds after which a test that waits for another thread gives up: more than a busy machine ever takes."""


class Loop:
    """Does what it is told in each run, and otherwise waits to be stopped."""

    def __init__(self, *plans: Callable[[Stop], object], name: str = "", clock: FakeClock | None = None) -> None:
        self.name = name
        self.heartbeat = Heartbeat(clock)
        self.life = Life("loop")
        self.plans = list(plans)
        self.started = threading.Event()
        self.runs = 0
        self.options: dict[str, object] = {}
        self.timeouts: list[float] = []

    @property
    def running(self) -> bool:
        return self.life.alive

    def run(
        self, *, max_iterations: int | None = None, visibility_timeout: float = 300, wait_time_seconds: float = 20
    ) -> None:
        self.options = {"visibility_timeout": visibility_timeout, "wait_time_seconds": wait_time_seconds}
        with self.life.running() as stop:
            self.runs += 1
            plan = self.plans.pop(0) if self.plans else _wait
            self.started.set()
            plan(stop)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        self.timeouts.append(timeout)
        return self.life.shutdown(timeout)


def _wait(stop: Stop) -> None:
    stop.wait()


def crash(_stop: Stop) -> None:
    raise ValueError("boom")


@contextmanager
def running(group: LoopGroup, *loops: Loop) -> Iterator[list[BaseException]]:
    """In a thread; what `run` raised is in the list after the block."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            group.run(install_signals=False)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for loop in loops:
            assert loop.started.wait(SOON)
        yield raised
    finally:
        group.trigger_shutdown()
        thread.join(SOON)
        assert not thread.is_alive()


def free(event: threading.Event) -> None:
    assert event.wait(SOON)


def until(what: Callable[[], object]) -> None:
    """Another thread is about to get there; there is no event for it."""
    pause = threading.Event()
    for _ in range(int(SOON / 0.002)):
        if what():
            return
        pause.wait(0.002)
    raise AssertionError("it never happened")
