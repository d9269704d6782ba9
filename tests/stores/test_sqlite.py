from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.stores.sqlite import SqliteStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from redrive.testing.conformance.machine import machine_for


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
async def open_store(quick_path: Path, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[SqliteStore] = []

    async def open_store() -> SqliteStore:
        handles.append(SqliteStore(quick_path / "redrive.db", clock=clock))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()


TestMachine = pytest.mark.slow(
    machine_for(
        lambda folder, clock: SqliteStore(folder / "redrive.db", clock=clock, durability="process-crash"), durable=True
    )
)
