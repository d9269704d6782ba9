from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance import *  # noqa: F403 - the whole suite is meant
from redrive.testing.conformance.kit import DURABLE, HANDLES, OpenStore
from redrive.testing.conformance.machine import machine_for
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


class _Examples:
    """A schema for each folder that the machine makes, given back when its folder is gone."""

    def __init__(self) -> None:
        self._urls: dict[Path, tuple[str, ExitStack]] = {}

    def __call__(self, folder: Path, clock: FakeClock) -> Store:
        for gone in [known for known in self._urls if not known.exists()]:
            self._urls.pop(gone)[1].close()
        if folder not in self._urls:
            stack = ExitStack()
            self._urls[folder] = (stack.enter_context(fresh_store("postgres", folder)), stack)
        return store_from_url(self._urls[folder][0], clock=clock)


TestMachine = pytest.mark.slow(machine_for(_Examples(), durable=True))
