"""Calls that arrive while a write is under way share the next one."""

from __future__ import annotations

import asyncio

import pytest

from redrive.engine.batcher import Batcher
from redrive.errors import ConfigError, StoreUnavailable


class Log:
    """A write that waits until it is let go, and refuses what is negative."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go_on = asyncio.Event()

    async def write(self, requests: list[int]) -> list[str]:
        self.batches.append(requests)
        await self.go_on.wait()
        if 0 in requests:
            raise StoreUnavailable("away")
        if min(requests) < 0:
            raise ConfigError("negative", field="n", hint="")
        return [str(each) for each in requests]


def called(batcher: Batcher[int, str], *requests: int) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(batcher(each)) for each in requests]


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)  # noqa: TID251 - turns of the loop


async def test_the_first_writes_alone_and_the_others_share_the_next_write() -> None:
    log = Log()
    batcher = Batcher(log.write, most=3)
    calls = called(batcher, 1, 2, 3, 4, 5)
    await turns()
    assert log.batches == [[1]]
    calls[2].cancel()
    log.go_on.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [each for each in answers if isinstance(each, str)] == ["1", "2", "4", "5"]
    assert log.batches == [[1], [2, 4], [5]]


async def test_a_request_that_is_refused_does_not_take_the_others_along() -> None:
    log = Log()
    batcher = Batcher(log.write)
    calls = called(batcher, 1, -2, 3)
    await turns()
    log.go_on.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in answers] == [str, ConfigError, str]
    assert log.batches == [[1], [-2, 3], [-2], [3]]


async def test_a_store_that_fails_fails_for_all_of_a_batch() -> None:
    log = Log()
    batcher = Batcher(log.write)
    calls = called(batcher, 1, 0, 2)
    await turns()
    log.go_on.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in answers] == [str, StoreUnavailable, StoreUnavailable]
    assert log.batches == [[1], [0, 2]]


async def test_with_a_start_of_ones_own_nothing_is_written_before_it_begins() -> None:
    log = Log()
    log.go_on.set()
    starts: list[int] = []
    batcher = Batcher(log.write, start=lambda: starts.append(1))
    assert batcher.begin() is False
    calls = called(batcher, 1, 2)
    await turns()
    assert (log.batches, len(starts)) == ([], 2)
    assert batcher.begin() is True
    assert await asyncio.gather(*calls) == ["1", "2"]
    assert log.batches == [[1, 2]]


async def test_a_cancelled_first_caller_lets_the_others_write() -> None:
    log = Log()
    batcher = Batcher(log.write)
    first, second = called(batcher, 1, 2)
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    log.go_on.set()
    assert await second == "2"
