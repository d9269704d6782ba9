from __future__ import annotations

import asyncio

import pytest

from redrive.errors import StoreUnavailable
from redrive.stores.aside import through


class Work:
    """Ends when it is told to, in the way it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = asyncio.Event()
        self.ended = False
        self._error = error

    async def run(self) -> str:
        await self.go.wait()
        self.ended = True
        if self._error is not None:
            raise self._error
        return "done"


async def test_through_gives_what_the_work_gives() -> None:
    work = Work()
    work.go.set()
    assert await through(work.run()) == "done"


async def test_through_raises_what_the_work_raises() -> None:
    work = Work(StoreUnavailable("gone"))
    work.go.set()
    with pytest.raises(StoreUnavailable):
        await through(work.run())


@pytest.mark.parametrize("error", [None, StoreUnavailable("gone")])
async def test_who_is_cancelled_is_told_so_when_the_work_has_ended_and_however_it_did(error: Exception | None) -> None:
    """Told of the failure instead, a part of a worker would ask again, and the worker would never stop."""
    work = Work(error)
    caller = asyncio.ensure_future(through(work.run()))
    await asyncio.sleep(0)  # noqa: TID251 - it begins
    caller.cancel()
    await asyncio.sleep(0)  # noqa: TID251 - it hears of it
    assert not caller.done()
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.ended
