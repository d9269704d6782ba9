"""PostgreSQL behind PgBouncer in transaction mode, where each transaction gets another of the server's sessions.

Nothing may be left in a session there, so the store is told `notify=off`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import asyncpg
import psycopg
import pytest

from redrive import Redrive
from redrive.errors import ConfigError, OutcomeUnknown, StoreUnavailable
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import World, ids, new
from redrive.testing.conformance.wait import returns, started, waiter
from tests.stores.postgres_ways_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_ways_kit import Fresh, by_way, on
from tests.stores.sample import *  # noqa: F403 - the tests and their fixtures
from tests.support.servers import shared
from tests.support.servers.absent import absent
from tests.support.servers.pooler import PREPARING, Pooler, private_pooler, version
from tests.support.servers.schemas import schemas

Work = Counter[int]


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


@asynccontextmanager
async def workers(count: int, url: str, done: Work) -> AsyncIterator[Redrive]:
    """So many at once; the app given has none of its own."""

    def app() -> Redrive:
        made = Redrive(url, log=False)

        @made.handler("numbers")
        async def handle(number: int) -> None:
            done[number] += 1

        return made

    async with AsyncExitStack() as stack:
        client, *apps = [await stack.enter_async_context(app()) for _ in range(1 + count)]
        running = [asyncio.create_task(each.run()) for each in apps]
        yield client
        for each in apps:
            await each.stop()
        await asyncio.gather(*running)


async def drained(app: Redrive, count: int) -> None:
    """Until so many are done, and none is on its way."""
    async with asyncio.timeout(40):
        while True:
            rows = (await app.tally()).queues
            if sum(row.done for row in rows) >= count and not any(row.ready or row.leased for row in rows):
                return
            await asyncio.sleep(0.05)  # noqa: TID251 - workers at a real server need real time


async def enqueued(app: Redrive, number: int) -> bool:
    """Whether it was accepted; one whose fate is not known is asked for again, under the same id."""
    for _ in range(200):
        try:
            await app.enqueue("numbers", {"number": number}, id=f"n-{number}")
        except (StoreUnavailable, OutcomeUnknown):
            await asyncio.sleep(0.02)  # noqa: TID251 - as above
        else:
            return True
    return False


@pytest.mark.slow
async def test_two_workers_share_the_work(pooler: Pooler, direct: str) -> None:
    done: Work = Counter()
    async with workers(2, pooler.url(direct, notify="off", poll="50ms"), done) as app:
        await app.enqueue_many("numbers", [{"number": number} for number in range(200)])
        await drained(app, 200)
    assert done == Counter(range(200))


@pytest.mark.slow
async def test_prepared_statements_of_others_do_no_harm(direct: str) -> None:
    """With a pooler that keeps them apart. The store makes none itself."""
    if version() < PREPARING:
        raise absent("PgBouncer that knows prepared statements", "install 1.21 or newer", another_version=True)
    done: Work = Counter()
    with private_pooler(shared.postgres().url, max_prepared_statements=100) as pooler:
        async with workers(2, pooler.url(direct, notify="off", poll="50ms"), done) as app:
            await app.enqueue_many("numbers", [{"number": number} for number in range(50)])
            await drained(app, 50)
    assert done == Counter(range(50))


@pytest.mark.slow
async def test_a_pooler_that_comes_and_goes_loses_nothing(pooler: Pooler, direct: str) -> None:
    done: Work = Counter()
    async with workers(2, pooler.url(direct, notify="off", poll="50ms", timeout="3s"), done) as app:
        accepted = []
        for number in range(120):
            if number % 40 == 20:
                # Without a word, and as for an upgrade.
                await asyncio.to_thread(pooler.kill if number < 40 else pooler.stop)
                coming_back = asyncio.create_task(asyncio.to_thread(pooler.start))
                accepted.append(await enqueued(app, number))
                await coming_back
            else:
                accepted.append(await enqueued(app, number))
        assert all(accepted)
        await drained(app, 120)
        assert sum(row.done for row in (await app.tally()).queues) == 120
    assert set(done) == set(range(120))


@pytest.mark.slow
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


@pytest.mark.slow
async def test_without_notify_off_the_error_says_what_to_do(pooler: Pooler, direct: str) -> None:
    with pytest.raises(StoreUnavailable, match="unsupported startup parameter") as caught:
        await store_from_url(pooler.url(direct)).open()
    assert caught.value.hint == "a pooler allows no settings: add notify=off to the URL"


@pytest.mark.slow
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


@pytest.mark.slow
async def test_options_for_a_pooler_are_refused_by_name(pooler: Pooler, direct: str) -> None:
    with pytest.raises(StoreUnavailable, match="unsupported startup parameter") as caught:
        await store_from_url(pooler.url(direct, notify="off", options="-c%20work_mem%3D8MB")).open()
    assert caught.value.hint == "a pooler allows no settings: take `options` out of the URL"


@pytest.mark.slow
async def test_a_pooler_that_is_full_says_so(direct: str) -> None:
    with private_pooler(shared.postgres().url, max_client_conn=1) as pooler:
        async with await psycopg.AsyncConnection.connect(pooler.url()):
            with pytest.raises(StoreUnavailable, match="the server takes no more connections") as caught:
                await store_from_url(pooler.url(direct, notify="off")).open()
    assert "max_client_conn of a pooler" in caught.value.hint
