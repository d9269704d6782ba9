import pytest

from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import OpenStore
from redrive.testing.conformance.machine import machine_for


@pytest.fixture
async def open_store(clock: FakeClock) -> OpenStore:
    store = MemoryStore(clock=clock)
    return store.open


TestMachine = pytest.mark.slow(machine_for(lambda _, clock: MemoryStore(clock=clock)))
