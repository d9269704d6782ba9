"""Several loops in one process: started, watched, and stopped together."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from redrive.blocking.loops.shutdown import ShutdownCoordinator
from redrive.blocking.loops.stop import Stop
from redrive.errors import InvalidParameterError
from redrive.mailboxes.loops.group import LoopGroup
from redrive.testing import FakeClock
from tests.mailboxes.threads import SOON, Loop, crash, free, running, until


def test_loops_run_with_what_the_group_says_and_stop_together() -> None:
    loops = [Loop(), Loop()]
    group = LoopGroup(loops)
    with running(group, *loops) as raised:
        assert all(loop.options == {"visibility_timeout": 1800, "wait_time_seconds": 30} for loop in loops)
        assert group.shutdown()
        assert not group.running
        assert not any(loop.running for loop in loops)
    assert not raised


def test_m40_all_are_told_to_stop_at_once_though_the_first_hangs() -> None:
    together = threading.Barrier(3)

    class Slow(Loop):
        def shutdown(self, *, timeout: float = 30.0) -> bool:
            # Told one after the other, the first would wait here for the others in vain.
            together.wait(SOON)
            return super().shutdown(timeout=timeout)

    release = threading.Event()
    hangs = Slow(lambda _: free(release))
    others = [Slow(), Slow()]
    group = LoopGroup([hangs, *others], shutdown_timeout=0.3)
    with running(group, hangs, *others) as raised:
        group.trigger_shutdown()
        until(lambda: not group.running)
        assert hangs.running
        # They were told; how long they take is their affair.
        until(lambda: not any(loop.running for loop in others))
        # One timeout for all of them, not one for each.
        assert all(timeout <= 0.3 for loop in (hangs, *others) for timeout in loop.timeouts)
    assert not raised
    assert not group.shutdown()
    release.set()
    until(lambda: not hangs.running)


def test_m40_a_loop_that_cannot_even_be_told_keeps_nobody() -> None:
    class Broken(Loop):
        def shutdown(self, *, timeout: float = 30.0) -> bool:
            raise RuntimeError("no")

    release = threading.Event()
    broken, other = Broken(lambda _: free(release)), Loop()
    group = LoopGroup([broken, other], shutdown_timeout=0.2)
    with running(group, broken, other):
        group.trigger_shutdown()
        until(lambda: not group.running)
        until(lambda: not other.running)
    release.set()


def test_a_loop_that_was_told_to_stop_before_it_began_is_told_again() -> None:
    class Late(Loop):
        told = threading.Event()

        def run(self, **options: Any) -> None:
            assert self.told.wait(SOON)
            super().run(**options)

        def shutdown(self, *, timeout: float = 30.0) -> bool:
            ended = super().shutdown(timeout=timeout)
            self.told.set()
            return ended

    late = Late()
    group = LoopGroup([late], shutdown_timeout=SOON)
    with running(group):
        group.trigger_shutdown()
        until(lambda: not group.running)
    assert late.runs == 1
    assert not late.running


def test_m_b4_acrash_is_noticed_while_an_earlier_loop_runs_on(caplog: pytest.LogCaptureFixture) -> None:
    first, crashing = Loop(name="first"), Loop(crash, name="second")
    group = LoopGroup([first, crashing])
    with running(group, first, crashing) as raised:
        until(lambda: not group.running)
    assert [str(error) for error in raised] == ["boom"]
    assert not first.running
    record = next(record for record in caplog.records if record.levelno == logging.CRITICAL)
    assert record.__dict__["redrive"]["loop"] == "second"
    assert record.__dict__["redrive"]["error_type"] == "builtins.ValueError"


def test_acrashed_loop_is_started_again_with_growing_pauses_if_wanted() -> None:
    clock = FakeClock()
    loop = Loop(crash, crash, clock=clock)
    group = LoopGroup([loop], restart=True, clock=clock, watchdog_threshold=None)
    with running(group) as raised:
        for pause, runs in ((1, 1), (2, 2)):
            until(lambda: clock.sleepers == 1)
            assert loop.runs == runs
            clock.advance(pause * 1000 - 1)
            assert clock.sleepers == 1
            clock.advance(1)
        until(lambda: loop.runs == 3 and loop.running)
    assert not raised


def test_a_loop_that_waits_for_its_restart_does_not_hold_up_the_end() -> None:
    clock = FakeClock()
    loop = Loop(crash, clock=clock)
    group = LoopGroup([loop], restart=True, clock=clock, watchdog_threshold=None)
    with running(group, loop) as raised:
        until(lambda: clock.sleepers == 1)
    assert loop.runs == 1
    assert [str(error) for error in raised] == ["boom"]


def test_loops_that_end_by_themselves_end_the_group_when_the_last_has() -> None:
    go = threading.Event()
    short, long = Loop(lambda _: None), Loop(lambda _: free(go))
    group = LoopGroup([short, long])
    with running(group, short, long) as raised:
        until(lambda: not short.running)
        assert group.running
        go.set()
        until(lambda: not group.running)
    assert not raised


def test_told_to_stop_before_it_runs_it_stops_at_once_and_can_run_again() -> None:
    loop = Loop()
    group = LoopGroup([loop])
    group.trigger_shutdown()
    group.run(install_signals=False)
    assert not loop.running
    loop.started.clear()
    with running(group, loop):
        assert loop.running


def test_a_group_as_a_context_stops_at_its_end() -> None:
    loop = Loop()
    with LoopGroup([loop]) as group:
        thread = threading.Thread(target=group.run, kwargs={"install_signals": False})
        thread.start()
        assert loop.started.wait(SOON)
    assert not loop.running
    thread.join(SOON)


def test_a_signal_stops_the_group_and_gives_the_signals_back() -> None:
    def ends_us(stop: Stop) -> None:
        coordinator = ShutdownCoordinator.get()
        assert coordinator is not None
        coordinator.trigger()
        stop.wait(SOON)

    loop = Loop(ends_us)
    LoopGroup([loop]).run()
    assert not loop.running
    assert ShutdownCoordinator.get() is None


def test_a_coordinator_of_somebody_else_stays() -> None:
    coordinator = ShutdownCoordinator.install()
    try:
        loop = Loop(lambda _: coordinator.trigger())
        LoopGroup([loop]).run()
        assert ShutdownCoordinator.get() is coordinator
    finally:
        ShutdownCoordinator.reset()


def test_ctrl_c_without_signals_taken_over_stops_the_loops() -> None:
    class Interrupted(LoopGroup):
        def _tend(self) -> None:
            assert loop.started.wait(SOON)
            raise KeyboardInterrupt

    loop = Loop()
    with pytest.raises(KeyboardInterrupt):
        Interrupted([loop]).run(install_signals=False)
    assert not loop.running


def test_a_group_outside_the_main_thread_says_that_signals_do_not_reach_it(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(lambda _: None)
    thread = threading.Thread(target=LoopGroup([loop]).run)
    thread.start()
    thread.join(SOON)
    assert loop.runs == 1
    assert "Signals are not listened to" in caplog.text


def test_the_watchdog_of_a_group_sees_a_stuck_loop_and_not_one_that_has_ended() -> None:
    clock, killed = FakeClock(), threading.Event()
    ended = Loop(lambda _: None, name="ended", clock=clock)
    stuck = Loop(name="stuck", clock=clock)
    group = LoopGroup([ended, stuck], watchdog_threshold=100, watchdog_interval=30, clock=clock, kill=killed.set)
    clock.advance("1h")  # as long as they do not run they need not beat
    with running(group, ended, stuck):
        until(lambda: not ended.running)
        for _ in range(5):
            until(lambda: clock.sleepers == 1)
            clock.advance("30s")
            stuck.heartbeat.beat()
        assert not killed.is_set()
        for _ in range(4):
            until(lambda: clock.sleepers == 1)
            clock.advance("30s")
        assert killed.wait(SOON)


def test_loops_of_one_name_are_told_apart() -> None:
    group = LoopGroup([Loop(name="a"), Loop(name="a-2"), Loop(name="a"), Loop(name="a"), Loop()])
    assert [loop["name"] for loop in group.health()["loops"]] == ["a", "a-2", "a-3", "a-4", "Loop"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"loops": []}, "loops"),
        ({"loops": [object()]}, "loops"),
        ({"loops": "twice"}, "loops"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"watchdog_threshold": 0}, "watchdog_threshold"),
        ({"watchdog_interval": 0}, "watchdog_interval"),
    ],
)
def test_a_group_that_cannot_be_is_refused(wrong: dict[str, object], field: str) -> None:
    loop = Loop()
    options: dict[str, object] = {"loops": [loop], **wrong}
    if options["loops"] == "twice":
        options["loops"] = [loop, loop]
    with pytest.raises(InvalidParameterError, match=f"^{field}: "):
        LoopGroup(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_waiting_longer_than_the_watchdog_bears_is_refused() -> None:
    group = LoopGroup([Loop()], watchdog_threshold=30)
    with pytest.raises(InvalidParameterError, match=r"^wait_time_seconds: 30 s without a beat"):
        group.run(install_signals=False, wait_time_seconds=30)


def test_a_group_runs_once_at_a_time() -> None:
    loop = Loop()
    group = LoopGroup([loop])
    with running(group, loop), pytest.raises(InvalidParameterError, match="already running"):
        group.run(install_signals=False)
