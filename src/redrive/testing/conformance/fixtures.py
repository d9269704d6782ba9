"""The fixtures that come with the suite. An engine brings `open_store`, and `capabilities` if it has any."""

from __future__ import annotations

import pytest

from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import OpenStore, World


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def world(request: pytest.FixtureRequest, open_store: OpenStore, clock: FakeClock) -> World:
    try:
        capabilities: frozenset[str] = request.getfixturevalue("capabilities")
    except pytest.FixtureLookupError:
        capabilities = frozenset()
    return World(await open_store(), open_store, clock, capabilities)
