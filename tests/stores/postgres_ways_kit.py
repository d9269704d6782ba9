"""A sample of the conformance suite on PostgreSQL in other ways than the usual one."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from tests.support.held import lasting
from tests.support.servers import shared
from tests.support.servers.schemas import Schemas, open_once

Fresh = Callable[[], AbstractContextManager[str]]
"""The URL of a store that nobody has used yet, for as long as a test takes."""
Way = Callable[[], AbstractContextManager[Fresh]]


def by_way(metafunc: pytest.Metafunc, ways: Mapping[str, Way]) -> None:
    """To be called by a module's pytest_generate_tests."""
    if "way" in metafunc.fixturenames:
        metafunc.parametrize("way", [pytest.param(way, id=name) for name, way in ways.items()], indirect=True)


@contextmanager
def on(where: shared.Shared) -> Iterator[Fresh]:
    made = Schemas(where, open_once)
    try:
        yield made.fresh
    finally:
        made.close()


@pytest.fixture(scope="module")
def opened_ways() -> Iterator[Callable[[Way], Fresh]]:
    """Each once: tests come in any order, and a fixture with parameters would be made again for most of them."""
    with ExitStack() as stack:

        @functools.cache
        def opened(way: Way) -> Fresh:
            with lasting():
                return stack.enter_context(way())

        yield opened


@pytest.fixture
def way(request: pytest.FixtureRequest, opened_ways: Callable[[Way], Fresh]) -> Fresh:
    return opened_ways(request.param)


@pytest.fixture
def url(way: Fresh) -> Iterator[str]:
    with way() as url:
        yield url


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
async def open_store(url: str, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[Store] = []

    async def open_store() -> Store:
        handles.append(store_from_url(url, clock=clock))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()
