"""The conformance suite on Valkey, and on a real Redis."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from redrive.testing.conformance.machine import machine_for
from redrive.testing.conformance.stage import MakeStore
from tests.stores.postgres_ways_kit import LEFT_OUT, SAMPLE
from tests.support.servers import namespaces, shared
from tests.support.servers.redis import FLAVOURS, flavours
from tests.support.servers.server import with_options


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All on the first flavour that is there; on the other a few always, and all under `prove`."""
    if "flavour" not in metafunc.fixturenames:
        return
    first = next(iter(flavours()), FLAVOURS[0])
    others = [flavour for flavour in FLAVOURS if flavour != first]
    proved = metafunc.definition.originalname not in SAMPLE
    if proved and LEFT_OUT in metafunc.config.getoption("markexpr"):
        others = []
    mark = [pytest.mark.prove] * proved
    metafunc.parametrize("flavour", [first, *(pytest.param(other, marks=mark) for other in others)], indirect=True)


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


def on(flavour: str) -> MakeStore:
    def make(folder: Path, clock: FakeClock) -> Store:
        name = namespaces.PREFIX + folder.name
        return store_from_url(with_options(shared.redis(flavour).url, {"namespace": name}), clock=clock)

    return make


TestValkeyMachine = pytest.mark.slow(machine_for(on("valkey"), durable=True))
TestRedisMachine = pytest.mark.slow(machine_for(on("redis"), durable=True))
