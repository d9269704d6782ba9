"""PostgreSQL behind PgBouncer in transaction mode, where each transaction gets another of the server's sessions.

Nothing may be left in a session there, so the store is told `notify=off`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import psycopg
import pytest

from redrive import Redrive
from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import World, ids, new
from redrive.testing.conformance.wait import returns, started, waiter
from tests.stores.postgres_ways_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_ways_kit import Fresh, by_way, on
from tests.stores.sample import *  # noqa: F403 - the tests and their fixtures
from tests.support.servers import shared
from tests.support.servers.pooler import Pooler, private_pooler
from tests.support.servers.schemas import schemas


@contextmanager
def through() -> Iterator[Fresh]:
    with on(shared.postgres()) as fresh, private_pooler(shared.postgres().url) as pooler:

        @contextmanager
        def behind_it() -> Iterator[str]:
            with fresh() as url:
                yield pooler.url(url, notify="off")

        yield behind_it


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    by_way(metafunc, {"transactions": through})


async def test_wait_returns_on_a_put_through_another_handle(world: World) -> None:
    """In place of the suite's: nobody tells us here, and it is found by looking."""
    other = await world.another()
    waiting = waiter(world)
    await started(world, waiting)
    made = new()
    await other.put([made])
    world.tick(1_000)
    await returns(waiting)
    assert ids(await world.lease(1)) == (made.id,)


# --- work, with a pooler of the test's own ---


@pytest.fixture
def pooler() -> Iterator[Pooler]:
    with private_pooler(shared.postgres().url) as pooler:
        yield pooler


@pytest.fixture
def direct() -> Iterator[str]:
    """A fresh store, by the address of its server."""
    with schemas().fresh() as url:
        yield url


async def test_within_joins_a_transaction_through_the_pooler(pooler: Pooler, direct: str) -> None:
    plain = pooler.url(direct.partition("?")[0])
    async with Redrive(pooler.url(direct, notify="off"), log=False) as app:
        app.queue("numbers")
        # More often than after which psycopg prepares by itself.
        for number in range(8):
            async with await psycopg.AsyncConnection.connect(plain, prepare_threshold=None) as connection:
                await app.enqueue("numbers", {"number": number}, within=connection)
        joined = await asyncpg.connect(plain, statement_cache_size=0)
        async with joined.transaction():
            await app.enqueue("numbers", {"number": 8}, within=joined)
            assert sum(row.ready for row in (await app.tally()).queues) == 8
        undone = joined.transaction()
        await undone.start()
        await app.enqueue("numbers", {"number": 9}, within=joined)
        await undone.rollback()
        await joined.close()
        assert sum(row.ready for row in (await app.tally()).queues) == 9


# --- a store that was not told of the pooler ---


async def test_without_notify_off_the_error_says_what_to_do(pooler: Pooler, direct: str) -> None:
    with pytest.raises(StoreUnavailable, match="unsupported startup parameter") as caught:
        await store_from_url(pooler.url(direct)).open()
    assert caught.value.hint == "a pooler allows no settings: add notify=off to the URL"


async def test_a_pooler_that_ignores_settings_is_found_out(pooler: Pooler, direct: str) -> None:
    """It would take them, forget them, and hand our prepared statements and our LISTEN to somebody else."""
    pooler.stop()
    pooler.settings["ignore_startup_parameters"] = "options,extra_float_digits"
    pooler.start()
    with pytest.raises(ConfigError, match="forgets the settings of a connection") as caught:
        await store_from_url(pooler.url(direct)).open()
    assert caught.value.hint == "a pooler allows no settings: add notify=off to the URL"
    store = await store_from_url(pooler.url(direct, notify="off")).open()
    await store.close()


async def test_options_for_a_pooler_are_refused_by_name(pooler: Pooler, direct: str) -> None:
    with pytest.raises(StoreUnavailable, match="unsupported startup parameter") as caught:
        await store_from_url(pooler.url(direct, notify="off", options="-c%20work_mem%3D8MB")).open()
    assert caught.value.hint == "a pooler allows no settings: take `options` out of the URL"


async def test_a_pooler_that_is_full_says_so(direct: str) -> None:
    with private_pooler(shared.postgres().url, max_client_conn=1) as pooler:
        async with await psycopg.AsyncConnection.connect(pooler.url()):
            with pytest.raises(StoreUnavailable, match="the server takes no more connections") as caught:
                await store_from_url(pooler.url(direct, notify="off")).open()
    assert "max_client_conn of a pooler" in caught.value.hint
