"""One time limit for many calls."""

from __future__ import annotations

import asyncio

import pytest

from redrive.receipts._patience import Patience

LONG, SHORT = 3_600_000, 5


async def _in(patience: Patience, work: asyncio.Future[None] | asyncio.Event) -> None:
    with patience:
        await (work.wait() if isinstance(work, asyncio.Event) else work)


async def test_what_ends_in_time_is_left_alone() -> None:
    patience, done = Patience(LONG), asyncio.Event()
    calls = [asyncio.create_task(_in(patience, done)) for _ in range(3)]
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    done.set()
    await asyncio.gather(*calls)
    assert patience._timer is None  # noqa: SLF001 - a timer would keep the loop


async def test_who_takes_longer_is_told_and_those_who_began_later_have_their_time() -> None:
    patience, never = Patience(SHORT), asyncio.Event()
    for _ in range(2):
        late = [asyncio.create_task(_in(patience, never)) for _ in range(3)]
        results = await asyncio.gather(*late, return_exceptions=True)
        assert [type(result) for result in results] == [TimeoutError] * 3
        assert [task.cancelling() for task in late] == [0] * 3


async def test_a_task_goes_on_after_it_was_late() -> None:
    patience = Patience(SHORT)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await _in(patience, asyncio.Event())
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop


async def test_whoever_is_cancelled_by_somebody_else_is_cancelled() -> None:
    patience, never = Patience(LONG), asyncio.Event()
    call = asyncio.create_task(_in(patience, never))
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_an_error_inside_is_that_error() -> None:
    patience = Patience(LONG)
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        await _in(patience, failed)


async def test_one_call_in_a_task_at_a_time() -> None:
    patience = Patience(LONG)
    with patience, pytest.raises(RuntimeError), patience:
        pass
