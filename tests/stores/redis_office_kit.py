"""What the tests of looking, amending and checking on Redis share: a world, and the server beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

from redrive.stores.base import Store
from redrive.stores.redis import RedisStore
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.fixtures import clock, world
from redrive.testing.conformance.kit import OpenStore
from tests.support.servers import namespaces

__all__ = ["Server", "address", "clock", "hastily", "open_store", "server", "world"]


@dataclass
class Server:
    """The same server without redrive, for what redrive itself would never do."""

    client: Any
    prefix: str

    def key(self, name: str) -> str:
        return self.prefix + name

    def now(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds * 1000 + micros // 1000)

    def snapshot(self) -> dict[bytes, bytes]:
        """Everything in the namespace, as it would be written to a disk."""
        return {key: self.client.dump(key) for key in sorted(self.client.scan_iter(match=f"{self.prefix}*"))}


@pytest.fixture
def address() -> Iterator[str]:
    with namespaces.fresh() as url:
        yield url


@pytest.fixture
async def open_store(address: str, clock: FakeClock) -> AsyncIterator[OpenStore]:
    handles: list[Store] = []

    async def open_store() -> Store:
        handles.append(store_from_url(address, clock=clock))
        return await handles[-1].open()

    yield open_store
    for handle in handles:
        await handle.close()


@pytest.fixture
def server(address: str) -> Iterator[Server]:
    parts = urlsplit(address)
    (namespace,) = parse_qs(parts.query)["namespace"]
    with redis.Redis.from_url(parts._replace(query="").geturl()) as client:
        yield Server(client, f"{{{namespace}}}:")


@asynccontextmanager
async def hastily(store: Store) -> AsyncIterator[None]:
    """With a deadline that is over soon: for what gets no answer in time, however quick the machine is."""
    assert isinstance(store, RedisStore)
    session = await store._here()  # noqa: SLF001 - it is the URL's for good
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_timeout", 0.1)
        yield
