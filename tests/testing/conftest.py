"""Apps for the tests of the kit: on every store, with handlers of both colours, all on one fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from redrive import Policy, Redrive
from redrive.testing import FakeClock, FaultyStore, MemoryStore
from tests.support.families import pytest_generate_tests
from tests.support.folders import quick_folder
from tests.support.stores import EACH, fresh_store

__all__ = ["pytest_generate_tests"]

COLOURS = ("async", "sync")
HOUR = 3_600_000


def boom() -> object:
    raise ConnectionError("the bank is down")


class Shop:
    """An open app whose handlers call `work`, as coroutines or in threads."""

    def __init__(self, app: Redrive, clock: FakeClock, colour: str) -> None:
        self.app = app
        self.clock = clock
        self.colour = colour

    def handle(self, queue: str, work: Callable[[], object], policy: Policy | None = None) -> None:
        async def in_the_loop(n: int = 0) -> object:
            return work()

        def in_a_thread(n: int = 0) -> object:
            return work()

        self.app.handler(queue, policy=policy)(in_the_loop if self.colour == "async" else in_a_thread)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=EACH)
async def app(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Redrive]:
    with quick_folder(tmp_path) as folder, fresh_store(request.param, folder) as url:
        async with Redrive(url, clock=clock, log=False, actor="tester") as opened:
            yield opened


@pytest.fixture(params=COLOURS)
def shop(request: pytest.FixtureRequest, app: Redrive, clock: FakeClock) -> Shop:
    return Shop(app, clock, request.param)


@pytest.fixture
async def faulty(clock: FakeClock) -> AsyncIterator[tuple[Redrive, FaultyStore]]:
    store = FaultyStore(MemoryStore(clock))
    async with Redrive(store, clock=clock, log=False) as opened:
        yield opened, store
