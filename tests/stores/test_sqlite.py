from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.core.verbs import WorkerFacts
from redrive.stores.sqlite import SqliteStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from tests.stores.machine_kit import run_on
from tests.support.templates import prepared

# `make test-fast` runs the suite in memory, and on SQLite the sample that the second driver runs too.
pytestmark = pytest.mark.slow


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
def database(quick_path: Path) -> Path:
    return prepared(quick_path / "redrive.db")


@pytest.fixture
async def open_store(database: Path, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[SqliteStore] = []

    async def open_store() -> SqliteStore:
        handles.append(SqliteStore(database, clock=clock))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()


def test_machine_smoke() -> None:
    run_on("sqlite", "smoke")


async def test_a_worker_that_stopped_is_not_alive_by_a_clock_that_is_behind(database: Path) -> None:
    """Milliseconds of two processes need not begin at the same time."""
    clocks = FakeClock(), FakeClock()
    clocks[0].advance(1)
    stopping, asking = [await SqliteStore(database, clock=clock).open() for clock in clocks]
    await stopping.beat("web-1", WorkerFacts((), stopped=True), 0)
    assert [beat.alive for beat in await asking.workers()] == [False]
    await stopping.close()
    await asking.close()
