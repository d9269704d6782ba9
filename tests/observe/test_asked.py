"""Values that a store is asked for when a scrape or a probe needs them."""

from __future__ import annotations

import asyncio
import itertools
import threading

from redrive.errors import StoreUnavailable
from redrive.observe.metrics import Asked, AskedInLoop, AskedInThread, Known, ask_all
from tests.mailboxes.threads import SOON, until


def ask(asked: Asked[int], timeout: float = SOON) -> Known[int]:
    return ask_all([asked], timeout)[0]


def test_a_store_that_hangs_is_asked_once_and_the_last_depth_is_told() -> None:
    release, asked = threading.Event(), []

    def hangs() -> int:
        asked.append(threading.current_thread())
        if len(asked) > 1:
            release.wait(SOON)
        return 7

    depth = AskedInThread(hangs)
    assert (ask(depth, SOON).value, ask(depth, 0.01).value) == (7, 7)
    until(lambda: len(asked) == 2)  # its thread may begin after we gave up
    assert ask(depth, 0.01).error == "no answer within 0.01 s"
    assert len(asked) == 2
    release.set()
    asked[1].join(SOON)
    assert ask(depth, SOON).error == ""


def test_several_that_hang_have_one_timeout_together() -> None:
    together, release, numbers = threading.Barrier(3), threading.Event(), itertools.count()

    def hangs() -> int:
        if next(numbers) < 3:
            # Asked one after the other they would never meet.
            together.wait(SOON)
        release.wait(SOON)
        return 1

    depths = [AskedInThread(hangs) for _ in range(3)]
    assert {known.error for known in ask_all(depths, 0.05)} == {"no answer within 0.05 s"}
    release.set()
    assert [known.value for known in ask_all(depths, SOON)] == [1, 1, 1]


async def test_in_a_loop_the_answer_is_there_for_the_next_and_an_error_keeps_the_last() -> None:
    loop, answers, answered = asyncio.get_running_loop(), iter((4, 5)), asyncio.Event()

    async def count() -> int:
        found = next(answers, None)
        answered.set()
        if found is None:
            raise StoreUnavailable("postgresql://me:secret@host is away")
        return found

    asked = AskedInLoop(count, lambda: loop)
    assert ask(asked).value is None, "nothing can wait here"
    await answered.wait()
    assert asked.known.value == 4
    while asked.known.value == 4:
        await asyncio.to_thread(ask, asked, SOON)
    known = await asyncio.to_thread(ask, asked, SOON)
    assert known.value == 5
    assert "is away" in known.error
    assert "secret" not in known.error


async def test_what_is_closed_waits_for_no_store() -> None:
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    async def hangs() -> int:
        begun.set()
        await asyncio.Event().wait()
        return 1

    asked = AskedInLoop(hangs, lambda: loop)
    asked.begin()
    await begun.wait()
    await asked.close()
    assert asked.known.value is None
    assert ask(AskedInLoop(hangs, lambda: None)).value is None
