"""The conformance suite on Valkey, and a sample of it on a real Redis."""

from collections.abc import AsyncIterator

import pytest

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from tests.stores import sample
from tests.stores.machine_kit import run_on
from tests.support.servers import namespaces
from tests.support.servers.redis import FLAVOURS, flavours


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All on the first flavour that is there, and the sample on the other."""
    if "flavour" in metafunc.fixturenames:
        first = next(iter(flavours()), FLAVOURS[0])
        others = [flavour for flavour in FLAVOURS if flavour != first]
        given = [first, *(others if metafunc.definition.originalname in sample.__all__ else ())]
        metafunc.parametrize("flavour", given, indirect=True)


@pytest.fixture
def flavour(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
async def open_store(flavour: str, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[Store] = []
    with namespaces.fresh(flavour) as url:

        async def open_store() -> Store:
            handles.append(store_from_url(url, clock=clock))
            return await handles[-1].open()

        yield open_store
        for handle in handles:
            await handle.close()


def test_machine_smoke() -> None:
    run_on("redis", "smoke")
