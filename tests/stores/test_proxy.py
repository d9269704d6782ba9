"""The whole suite through bytes: what the verbs take and give survives a wire."""

import pytest

from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import OpenStore
from redrive.testing.conformance.machine import machine_for
from redrive.testing.proxy import EncodingProxy

pytestmark = pytest.mark.slow  # the quick run has the same suite on the stores themselves


@pytest.fixture
async def open_store(clock: FakeClock) -> OpenStore:
    store = MemoryStore(clock=clock)

    async def open_store() -> Store:
        return await EncodingProxy(store).open()

    return open_store


TestMachine = machine_for(lambda _, clock: EncodingProxy(MemoryStore(clock=clock)))
