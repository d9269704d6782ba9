from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from tests.stores.machine_kit import run_on
from tests.support.stores import fresh_store


@pytest.fixture
def capabilities() -> frozenset[str]:
    return frozenset({DURABLE, HANDLES})


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with fresh_store("postgres", tmp_path) as url:
        yield url


@pytest.fixture
async def open_store(url: str, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[Store] = []

    async def open_store() -> Store:
        handles.append(store_from_url(url, clock=clock))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()


def test_machine_smoke() -> None:
    run_on("postgres", "smoke")
