"""A connection that outlives a test is new to the next one, and whatever is in doubt is told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from redrive.stores.postgres import PostgresStore
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.wire import Wire
from redrive.stores.url import store_from_url
from tests.support.servers import schemas, shared, warm

pytestmark = pytest.mark.slow


@pytest.fixture
def url() -> Iterator[str]:
    with schemas.schemas().fresh() as url:
        yield url


@pytest.fixture
def shelf(url: str) -> warm.Shelf:
    """With room: earlier tests may have filled it."""
    shelf = warm.shelf()
    shelf.empty()
    return shelf


async def opened(url: str) -> tuple[PostgresStore, Session]:
    store = store_from_url(url)
    assert isinstance(store, PostgresStore)
    await store.open()
    return store, await store._here()  # noqa: SLF001 - its connections are what this is about


async def one(url: str) -> tuple[PostgresStore, Session, Wire]:
    """An open store and its one connection, which is taken from its pool."""
    store, session = await opened(url)
    return store, session, await session._pool.take()  # noqa: SLF001 - see above


async def test_a_connection_at_rest_is_used_again(url: str, shelf: warm.Shelf) -> None:
    doubts = shelf.doubts
    store, session, wire = await one(url)
    backend = wire.info.backend_pid
    session._pool.give(wire)  # noqa: SLF001 - see above
    await store.close()
    other, session, again = await one(url)
    assert again.info.backend_pid == backend
    assert (again.autocommit, again.prepare_threshold, again.pid) == (True, 2, os.getpid())
    assert wire.closed
    with pytest.raises(psycopg.OperationalError, match="closed"):
        await wire.rows("select 1")
    for _ in range(3):
        assert await again.rows("select 7") == [(7,)]
    session._pool.give(again)  # noqa: SLF001 - see above
    await other.close()
    assert shelf.doubts == doubts


async def test_a_connection_in_a_transaction_is_not(url: str, shelf: warm.Shelf) -> None:
    doubts = shelf.doubts
    store, session, wire = await one(url)
    backend = wire.info.backend_pid
    await wire.rows("begin")
    session._pool.give(wire)  # noqa: SLF001 - see above
    await store.close()
    assert shelf.doubts > doubts
    other, session, again = await one(url)
    assert again.info.backend_pid != backend
    session._pool.give(again)  # noqa: SLF001 - see above
    await other.close()


async def test_a_connection_that_has_ended_is_not(url: str, shelf: warm.Shelf) -> None:
    store, session, wire = await one(url)
    backend = wire.info.backend_pid
    session._pool.give(wire)  # noqa: SLF001 - see above
    await store.close()
    with psycopg.connect(shared.postgres().admin, autocommit=True) as admin:
        assert admin.execute("select pg_terminate_backend(%s, 5000)", (backend,)).fetchone() == (True,)
    other, session, again = await one(url)
    assert again.info.backend_pid != backend
    session._pool.give(again)  # noqa: SLF001 - see above
    await other.close()


async def test_who_asks_for_something_special_gets_it(url: str, shelf: warm.Shelf) -> None:
    store, session, wire = await one(url)
    backend = wire.info.backend_pid
    session._pool.give(wire)  # noqa: SLF001 - see above
    await store.close()
    for special in (f"{url}&timeout=7s", f"{url}&application_name=mine"):
        other, session, again = await one(special)
        assert again.info.backend_pid != backend
        session._pool.give(again)  # noqa: SLF001 - see above
        await other.close()


async def test_a_store_that_is_left_open_is_told(url: str, shelf: warm.Shelf) -> None:
    store, session = await opened(url)
    name = session.options.schema
    assert shelf.in_use(name)
    await store.close()
    assert not shelf.in_use(name)


def test_a_process_is_told(shelf: warm.Shelf) -> None:
    doubts = shelf.doubts
    subprocess.run(["true"], check=True)
    child = os.fork()
    if child == 0:  # pragma: no cover - ends at once
        os._exit(0)
    os.waitpid(child, 0)
    assert shelf.doubts == doubts + 2
