from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
