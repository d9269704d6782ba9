"""What the tests of the PostgreSQL store's way with items and connections share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive.core.decide import Charge, ToDead, ToDone, ToReady
from redrive.core.item import Attempt, Ending, Failure, Item, NewItem
from redrive.core.verbs import LeaseRequest, Settlement, Want
from redrive.stores.postgres import PostgresStore
from redrive.stores.postgres.session import Session
from redrive.stores.url import store_from_url
from redrive.testing.clock import FakeClock
from tests.stores.postgres_kit import execute, rows, schema_of
from tests.support.servers.schemas import schemas
from tests.support.stores import fresh_store

Open = Callable[..., Awaitable[PostgresStore]]

MINE = "from pg_stat_activity where application_name = current_schema()"
"""The sessions of the stores that a test has opened. Other tests run beside it on the same server."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with fresh_store("postgres", tmp_path) as url:
        yield url


@pytest.fixture
def unused() -> Iterator[str]:
    """A schema that is not there yet."""
    with schemas().missing() as url:
        yield url


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Open]:
    """Opens a store, with more options, or at another URL."""
    handles: list[PostgresStore] = []

    async def opened(options: str = "", where: str = url, **given: Any) -> PostgresStore:
        handles.append(unopened(f"{where}{options}", **given))
        return await handles[-1].open()

    yield opened
    for handle in handles:
        await handle.close()


def unopened(url: str, **given: Any) -> PostgresStore:
    """Known to the server by the name of its schema."""
    store = store_from_url(f"{url}&application_name={schema_of(url)}", **given)
    assert isinstance(store, PostgresStore)
    return store


def news(count: int, prefix: str = "i", queue: str = "q") -> list[NewItem]:
    return [NewItem(f"{prefix}-{number:05d}", queue, b"{}") for number in range(count)]


def asking(limit: int = 10, nonce: str = "n", worker: str = "w") -> LeaseRequest:
    return LeaseRequest(worker, (Want("q", limit, 30_000, 3),), nonce)


def finished(items: tuple[Item, ...]) -> list[Settlement]:
    return [Settlement(item.id, item.deliveries, ToDone()) for item in items]


def failed(item: Item) -> Settlement:
    """With all that can go with it; every second one is dead."""
    why = Failure("Broken", "it broke", "error", "default", "c1")
    attempt = Attempt(item.deliveries, item.attempt, "w", 0, 1, Ending.FAILED, why)
    decision = ToDead("max_attempts", Charge.ERROR, why) if item.seq % 2 else ToReady(0, Charge.CRASH)
    return Settlement(item.id, item.deliveries, decision, attempt, (NewItem(f"{item.id}-next", "q", b"{}"),))


async def session_of(store: PostgresStore) -> Session:
    return await store._here()  # noqa: SLF001 - its tests need it


@contextmanager
def hastily(session: Session, timeout: int = 100) -> Iterator[None]:
    """With deadlines that are over soon: for what gets no answer at all, however quick the machine is."""
    options = session.options
    before = {name: getattr(options, name) for name in ("timeout", "connect_timeout")}
    for name in before:
        object.__setattr__(options, name, timeout)
    try:
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(options, name, value)


async def gone(url: str) -> None:
    """Until the server has ended all sessions of ours; with its end a session also hands in its statistics."""
    async with asyncio.timeout(10):
        while await rows(url, f"select 1 {MINE}"):  # noqa: ASYNC110 - nobody tells when a server's session has ended
            await asyncio.sleep(0.005)  # noqa: TID251 - as above


async def keep_from_statistics(url: str) -> None:
    """The server makes none by itself meanwhile, so plans are those of a table that it has never looked at."""
    tables = "select relname from pg_class where relkind = 'r' and relnamespace = current_schema()::regnamespace"
    names = [name for (name,) in await rows(url, tables)]
    await execute(url, *[f"alter table {name} set (autovacuum_enabled = false)" for name in names])


async def end_sessions(url: str) -> None:
    await execute(url, f"select pg_terminate_backend(pid) {MINE}")


async def asleep(clock: FakeClock) -> None:
    """Until somebody sleeps on the clock: then a waiter has looked."""
    async with asyncio.timeout(10):
        while not clock.sleepers:  # noqa: ASYNC110 - the clock has no event for it
            await asyncio.sleep(0)  # noqa: TID251 - a turn for the others
