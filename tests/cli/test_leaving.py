"""How the process ends where something would keep it: a loop that a handler blocks, a thread that hangs."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from redrive.cli import guard, leaving
from redrive.cli.exits import Exit
from redrive.cli.guard import Guard
from tests.support.cli import PATIENCE, Left


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Codes with which the process would have ended at once."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        if threading.current_thread() is threading.main_thread():
            raise Left

    monkeypatch.setattr(os, "_exit", leave)
    return codes


def guarded(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, *, looks: int
) -> tuple[Guard, threading.Thread]:
    """A guard that has heard a signal, and looks so many times for a sign of life, each a millisecond long."""
    monkeypatch.setattr(guard, "PAUSE", 0.001)
    monkeypatch.setattr(guard, "LOOKS", looks)
    before = set(threading.enumerate())
    made = Guard(loop, 0)
    (thread,) = set(threading.enumerate()) - before
    made._heard.put(15)  # noqa: SLF001 - as the handler of a signal does
    return made, thread


def test_a_loop_that_does_not_turn_is_left(
    ended: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = asyncio.new_event_loop()
    _, thread = guarded(loop, monkeypatch, looks=1)
    thread.join(PATIENCE)
    loop.close()
    assert ended == [Exit.FAILED]
    assert "a handler blocks the event loop; leaving" in capfd.readouterr().err


def test_a_loop_that_turns_is_left_alone(ended: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[bool] = []
    enough = asyncio.Event()

    async def turn() -> threading.Thread:
        loop = asyncio.get_running_loop()
        made, thread = guarded(loop, monkeypatch, looks=PATIENCE * 1000)
        looked = made._turns  # noqa: SLF001 - each look

        def count() -> bool:
            turns.append(looked())
            loop.call_soon_threadsafe(enough.set)
            return turns[-1]

        monkeypatch.setattr(made, "_turns", count)
        await enough.wait()
        return thread

    thread = asyncio.run(turn())
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it ends with the loop"
    assert (ended, all(turns)) == ([], True)


def test_a_thread_that_hangs_does_not_keep_the_process(
    ended: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leaving, "PATIENCE", 0.0)
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(PATIENCE,), name="stuck")
    thread.start()
    monkeypatch.setattr(leaving, "_lingering", lambda: [thread])
    with pytest.raises(Left):
        leaving.leave(Exit.DONE)
    over.set()
    thread.join(PATIENCE)
    assert ended == [Exit.DONE]
    assert capsys.readouterr().err == "redrive: left behind 1 thread that would not end: stuck\n"


def test_a_process_that_nothing_keeps_ends_normally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_lingering", list)
    with pytest.raises(SystemExit) as end:
        leaving.leave(Exit.PARTLY)
    assert end.value.code == Exit.PARTLY
