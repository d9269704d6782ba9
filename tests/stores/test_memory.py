import pytest

from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import OpenStore
from tests.stores.machine_kit import run_on


@pytest.fixture
async def open_store(clock: FakeClock) -> OpenStore:
    store = MemoryStore(clock=clock)
    return store.open


def test_machine_smoke() -> None:
    run_on("memory", "smoke")
