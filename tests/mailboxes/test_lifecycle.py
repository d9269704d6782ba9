"""The parts that loops live by: heartbeat, stop, life, watchdog, and the signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from redrive.blocking.loops.heartbeat import Heartbeat
from redrive.blocking.loops.lifecycle import Life
from redrive.blocking.loops.shutdown import ShutdownCoordinator
from redrive.blocking.loops.stop import Stop
from redrive.blocking.loops.watchdog import Watchdog
from redrive.errors import InvalidParameterError
from redrive.testing import FakeClock
from tests.mailboxes.threads import SOON, until
from tests.support.logs import ours

# --- heartbeat ---


def test_a_heartbeat_tells_how_long_ago_it_beat() -> None:
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    clock.advance("90s")
    assert heartbeat.elapsed() == 90
    heartbeat.beat()
    assert heartbeat.elapsed() == 0
    clock.advance("1500ms")
    assert heartbeat.elapsed() == 1.5


def test_a_callback_that_fails_keeps_nobody_from_beating(caplog: pytest.LogCaptureFixture) -> None:
    heartbeat = Heartbeat(FakeClock())
    called: list[str] = []

    def broken() -> None:
        called.append("broken")
        raise ValueError("boom")

    heartbeat.add_callback(broken)
    heartbeat.add_callback(lambda: called.append("other"))
    heartbeat.beat()
    assert called == ["broken", "other"]
    assert "boom" in caplog.text
    assert caplog.records[0].getMessage().endswith("<locals>.broken"), "it says which"
    heartbeat.remove_callback(broken)
    heartbeat.remove_callback(broken)
    heartbeat.beat()
    assert called == ["broken", "other", "other"]


def test_a_callback_may_add_and_remove_callbacks() -> None:
    heartbeat = Heartbeat(FakeClock())
    called: list[int] = []

    def once() -> None:
        called.append(1)
        heartbeat.remove_callback(once)
        heartbeat.add_callback(lambda: called.append(2))

    heartbeat.add_callback(once)
    heartbeat.beat()
    heartbeat.beat()
    assert called == [1, 2]


# --- stop ---


def test_a_thread_that_waits_on_a_clock_of_a_test_is_woken_by_time_or_by_stop() -> None:
    clock, stop = FakeClock(), Stop()
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(stop.wait(60, clock)))
    thread.start()
    until(lambda: clock.sleepers == 1)
    assert not waited
    clock.advance("60s")
    thread.join(SOON)
    assert waited == [False]

    thread = threading.Thread(target=lambda: waited.append(stop.wait(60, clock)))
    thread.start()
    until(lambda: clock.sleepers == 1)
    stop.set()
    thread.join(SOON)
    assert waited == [False, True]
    assert stop.wait(60, clock)


# --- life ---


def test_a_life_is_lived_once_at_a_time_and_can_begin_again() -> None:
    life = Life("loop")
    for _ in range(2):
        with life.running() as stop:
            assert life.alive
            with pytest.raises(InvalidParameterError, match="already running"), life.running():
                pass
            assert not life.shutdown(0)
            assert stop.is_set()
        assert life.shutdown(0)


def test_a_shutdown_really_waits() -> None:
    life, inside, leave = Life("loop"), threading.Event(), threading.Event()

    def run() -> None:
        with life.running() as stop:
            inside.set()
            stop.wait(SOON)
            leave.wait(SOON)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(SOON)
    assert not life.shutdown(0.01)
    leave.set()
    assert life.shutdown(SOON)
    assert not life.alive
    thread.join(SOON)


# --- watchdog ---


def test_the_watchdog_kills_when_a_heartbeat_is_silent_for_too_long(caplog: pytest.LogCaptureFixture) -> None:
    clock, killed = FakeClock(), threading.Event()
    fine, stuck = Heartbeat(clock), Heartbeat(clock)
    watchdog = Watchdog({"fine": fine, "stuck": stuck}, threshold=720, interval=60, clock=clock, kill=killed.set)
    watchdog.start()
    for _ in range(12):
        until(lambda: clock.sleepers == 1)
        clock.advance("60s")
        fine.beat()
    until(lambda: clock.sleepers == 1)
    assert not killed.is_set()
    clock.advance("60s")
    assert killed.wait(SOON)
    assert [record.levelname for record in ours(caplog)] == ["CRITICAL"]
    assert "stuck for 780 s" in caplog.text
    assert "fine" not in caplog.text


def test_the_watchdog_looks_at_least_three_times_in_a_threshold() -> None:
    clock, killed = FakeClock(), threading.Event()
    watchdog = Watchdog({"stuck": Heartbeat(clock)}, threshold=3, interval=60, clock=clock, kill=killed.set)
    watchdog.start()
    until(lambda: clock.sleepers == 1)
    clock.advance("1s")
    until(lambda: clock.sleepers == 1)
    clock.advance("2500ms")
    assert killed.wait(SOON)


def test_after_the_whole_process_stood_still_loops_get_time_to_beat() -> None:
    clock, killed = FakeClock(), threading.Event()
    watchdog = Watchdog({"frozen": Heartbeat(clock)}, threshold=720, interval=60, clock=clock, kill=killed.set)
    watchdog.start()
    until(lambda: clock.sleepers == 1)
    clock.advance("2h")
    until(lambda: clock.sleepers == 1)
    assert not killed.is_set()
    clock.advance("60s")
    assert killed.wait(SOON), "and it did not"


def test_a_watchdog_that_is_stopped_kills_nobody() -> None:
    clock, killed = FakeClock(), threading.Event()
    watchdog = Watchdog({"stuck": Heartbeat(clock)}, clock=clock, kill=killed.set)
    watchdog.start()
    until(lambda: clock.sleepers == 1)
    watchdog.stop()
    until(lambda: clock.sleepers == 0)
    clock.advance("1h")
    assert not killed.is_set()


@pytest.mark.parametrize("wrong", [{"threshold": 0}, {"interval": -1}, {"threshold": float("nan")}])
def test_a_watchdog_without_time_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError, match="watchdog_"):
        Watchdog({}, **wrong)  # type: ignore[arg-type]  # numbers, by name


# --- signals ---


@pytest.fixture
def coordinator() -> Iterator[ShutdownCoordinator]:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        yield ShutdownCoordinator.install()
    finally:
        ShutdownCoordinator.reset()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_calls_every_callback_once_in_a_thread_of_its_own(
    coordinator: ShutdownCoordinator, number: int
) -> None:
    called: list[int] = []
    both = threading.Event()

    def second() -> None:
        called.append(threading.get_ident())
        both.set()

    coordinator.register(lambda: called.append(threading.get_ident()))
    coordinator.register(second)
    assert not coordinator.triggered
    os.kill(os.getpid(), number)
    assert both.wait(SOON)
    os.kill(os.getpid(), number)
    coordinator.trigger()
    assert len(called) == 2
    assert threading.get_ident() not in called
    assert coordinator.triggered


def test_m_b21_a_signal_does_not_wait_for_a_lock_that_the_interrupted_code_holds(
    coordinator: ShutdownCoordinator,
) -> None:
    called = threading.Event()
    coordinator.register(called.set)
    with coordinator._lock:  # noqa: SLF001 - the one that registering takes
        # The handler runs here, in this very thread.
        os.kill(os.getpid(), signal.SIGTERM)
        assert not called.is_set()
    assert called.wait(SOON)


def test_a_callback_may_register_and_unregister(coordinator: ShutdownCoordinator) -> None:
    called: list[str] = []

    def first() -> None:
        coordinator.unregister(first)
        coordinator.register(lambda: called.append("late"))

    coordinator.register(first)
    coordinator.register(_fails)
    coordinator.register(lambda: called.append("third"))
    coordinator.trigger()
    assert called == ["late", "third"]
    coordinator.register(lambda: called.append("later"))
    assert called[-1] == "later"


def test_unregistered_callbacks_are_not_called(coordinator: ShutdownCoordinator) -> None:
    called: list[str] = []
    coordinator.register(callback := lambda: called.append("called"))
    coordinator.unregister(callback)
    coordinator.unregister(callback)
    coordinator.trigger()
    assert not called


def test_there_is_one_coordinator(coordinator: ShutdownCoordinator) -> None:
    assert ShutdownCoordinator.install() is coordinator
    assert ShutdownCoordinator.get() is coordinator
    ShutdownCoordinator.reset()
    assert ShutdownCoordinator.get() is None


def test_signals_are_taken_over_only_in_the_main_thread() -> None:
    raised: list[Exception] = []

    def install() -> None:
        try:
            ShutdownCoordinator.install()
        except InvalidParameterError as error:
            raised.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join(SOON)
    assert "main thread" in str(raised[0])
    assert ShutdownCoordinator.get() is None


def test_a_forked_child_dies_of_a_signal_as_it_would_have(coordinator: ShutdownCoordinator) -> None:
    told = threading.Event()
    coordinator.register(told.set)
    child = os.fork()
    if child == 0:
        # SIGINT's own handler raises here, where nobody catches it: only _exit leaves without pytest's own end.
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert not told.is_set()


def _fails() -> None:
    raise RuntimeError("it does not want to stop")
