"""Waiting for a coroutine in another thread: what interrupts it, and what becomes of both."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from redrive.blocking import _call
from redrive.blocking._call import Call
from redrive.errors import AppClosed
from tests.blocking.kit import done, in_thread
from tests.support.cli import PATIENCE


class Interrupted(BaseException):
    pass


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    if not made.is_closed():
        made.call_soon_threadsafe(made.stop)
        thread.join(PATIENCE)
        made.close()


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """What Ctrl-C does, under another number: pytest has plans for Ctrl-C."""

    times = itertools.count(1)

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted(next(times))

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_an_interruption_cancels_and_waits_for_the_end(
    loop: asyncio.AbstractEventLoop, interrupt: Callable[[], None]
) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            interrupt()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            for _ in range(5_000):
                await asyncio.sleep(0)  # noqa: TID251 - no time passes: it takes many turns to clean up
            seen.append("cleaned up")
            raise

    with pytest.raises(Interrupted):
        Call(loop, "work", work).result()
    assert seen == ["cancelled", "cleaned up"]


def test_a_second_interruption_gives_up_waiting(loop: asyncio.AbstractEventLoop, interrupt: Callable[[], None]) -> None:
    let_go = threading.Event()
    ended = threading.Event()

    async def stubborn() -> None:
        try:
            interrupt()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupt()
            await asyncio.to_thread(let_go.wait, PATIENCE)
            ended.set()

    with pytest.raises(Interrupted) as caught:
        Call(loop, "stubborn", stubborn).result()
    assert caught.value.args == (2,)
    assert not ended.is_set()
    let_go.set()
    assert ended.wait(PATIENCE)


def test_each_interruption_takes_the_next_step(loop: asyncio.AbstractEventLoop, interrupt: Callable[[], None]) -> None:
    steps: list[str] = []
    end = asyncio.Event()

    async def work() -> None:
        interrupt()
        await end.wait()

    def first() -> None:
        steps.append("politely")
        loop.call_soon_threadsafe(interrupt)

    def second() -> None:
        steps.append("now")
        loop.call_soon_threadsafe(end.set)

    with pytest.raises(Interrupted) as caught:
        Call(loop, "work", work).result(first, second)
    assert caught.value.args == (1,)
    assert steps == ["politely", "now"]


def test_an_interruption_before_the_loop_was_told_waits_for_nothing(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = loop.call_soon_threadsafe
    calls: list[object] = []

    def interrupted(callback: Callable[[], object]) -> object:
        calls.append(callback)
        if len(calls) == 1:
            raise Interrupted
        return tell(callback)

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    begun: list[bool] = []

    async def work() -> None:
        begun.append(True)

    with pytest.raises(Interrupted):
        done(in_thread(Call(loop, "work", work).result))
    assert not begun


def test_a_call_that_is_cancelled_before_its_first_step_ends(loop: asyncio.AbstractEventLoop) -> None:
    begun: list[bool] = []

    async def work() -> None:
        begun.append(True)

    call = Call(loop, "work", work)
    both_said = threading.Event()
    loop.call_soon_threadsafe(both_said.wait, PATIENCE)
    call.start()
    call.cancel()
    both_said.set()
    assert call.wait(PATIENCE)
    with pytest.raises(AppClosed, match="work was cut off"):
        call.outcome()
    assert not begun


def test_a_call_into_a_loop_that_is_gone_is_refused(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)
    done(in_thread(lambda: wait_until_stopped(loop)))
    loop.close()

    async def work() -> None: ...

    with pytest.raises(AppClosed, match="work was cut off"):
        Call(loop, "work", work).result()


def test_a_call_whose_loop_goes_is_cut_off(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_call, "LOOK", 0.01)

    async def work() -> None:
        task = asyncio.current_task()
        # Nobody will end it: what is said of that when it is freed would be heard by another test.
        task._log_destroy_pending = False  # type: ignore[union-attr]  # noqa: SLF001 - as asyncio does with its own
        loop.stop()
        await asyncio.Event().wait()

    asked = in_thread(Call(loop, "work", work).result)
    done(in_thread(lambda: wait_until_stopped(loop)))
    loop.close()
    with pytest.raises(AppClosed, match="work was cut off"):
        done(asked)


def test_a_call_that_others_cancel_says_so(loop: asyncio.AbstractEventLoop) -> None:
    async def work() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(AppClosed, match="whether it was done is not known"):
        Call(loop, "work", work).result()


def wait_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    while loop.is_running():
        pass
