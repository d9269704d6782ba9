"""`enqueue(within=connection)`: there when the caller's transaction commits, and never there if it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.ext import asyncio as alchemy
from sqlalchemy.orm import Session

from redrive import Keyring, Redrive, blocking
from redrive.app.internals import store_of
from redrive.errors import ConfigError, Conflict, EncryptionKeyMissing, StoreUnavailable
from redrive.stores.aside import aside

Way = Callable[[str], AbstractAsyncContextManager[Any]]


class Rollback(Exception):
    """What a caller's block raises to have its transaction undone."""


def dsn(url: str) -> str:
    """Without what is ours."""
    return url.partition("?")[0]


def alchemy_url(url: str, driver: str) -> str:
    return f"postgresql+{driver}://{dsn(url).partition('://')[2]}"


# --- every way to have a transaction: commits at the end of the block, rolls back on an error ---


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
        yield connection


@asynccontextmanager
async def psycopg_rows_as_dicts(url: str) -> AsyncIterator[Any]:
    connect = psycopg.AsyncConnection[dict[str, Any]].connect
    async with await connect(dsn(url), row_factory=psycopg.rows.dict_row) as connection:
        yield connection


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(dsn(url)) as connection:
        yield connection


@asynccontextmanager
async def psycopg2_(url: str) -> AsyncIterator[Any]:
    connection = psycopg2.connect(dsn(url))
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@asynccontextmanager
async def asyncpg_(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn(url))
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(dsn(url), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


def alchemy_sync(driver: str) -> Way:
    @asynccontextmanager
    async def way(url: str) -> AsyncIterator[Any]:
        engine = sqlalchemy.create_engine(alchemy_url(url, driver))
        try:
            with engine.begin() as connection:
                yield connection
        finally:
            engine.dispose()

    return way


@asynccontextmanager
async def alchemy_session(url: str) -> AsyncIterator[Any]:
    engine = sqlalchemy.create_engine(alchemy_url(url, "psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@asynccontextmanager
async def alchemy_dbapi(url: str) -> AsyncIterator[Any]:
    engine = sqlalchemy.create_engine(alchemy_url(url, "psycopg"))
    try:
        with engine.begin() as connection:
            yield connection.connection
    finally:
        engine.dispose()


def alchemy_async(driver: str) -> Way:
    @asynccontextmanager
    async def way(url: str) -> AsyncIterator[Any]:
        engine = alchemy.create_async_engine(alchemy_url(url, driver))
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()

    return way


@asynccontextmanager
async def alchemy_async_session(url: str) -> AsyncIterator[Any]:
    engine = alchemy.create_async_engine(alchemy_url(url, "asyncpg"))
    try:
        async with engine.connect():
            pass  # what a driver does to connect is its own business, and may block
        async with alchemy.AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


WAYS: dict[str, Way] = {
    "psycopg async": psycopg_async,
    "psycopg async, rows as dicts": psycopg_rows_as_dicts,
    "psycopg": psycopg_sync,
    "psycopg2": psycopg2_,
    "asyncpg": asyncpg_,
    "asyncpg from a pool": asyncpg_pool,
    "SQLAlchemy on psycopg": alchemy_sync("psycopg"),
    "SQLAlchemy on psycopg2": alchemy_sync("psycopg2"),
    "SQLAlchemy session": alchemy_session,
    "SQLAlchemy, its DBAPI connection": alchemy_dbapi,
    "SQLAlchemy async on asyncpg": alchemy_async("asyncpg"),
    "SQLAlchemy async on psycopg": alchemy_async("psycopg"),
    "SQLAlchemy async session": alchemy_async_session,
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


@pytest.fixture
def url(store_url: Callable[[str], str]) -> str:
    return store_url("postgres")


@pytest.fixture
async def app(url: str) -> AsyncIterator[Redrive]:
    app = Redrive(url, log=False)
    app.queue("emails")
    async with app:
        yield app


async def ready(app: Redrive) -> int:
    (row,) = (await app.tally()).queues
    return row.ready


async def test_it_is_there_when_the_transaction_commits(app: Redrive, url: str, way: Way) -> None:
    async with way(url) as connection:
        one = await app.enqueue("emails", {"to": "a"}, within=connection)
        many = await app.enqueue_many("emails", [{"to": "b"}, {"to": "\x00 ☃"}], delay="1m", within=connection)
        assert await ready(app) == 0, "before the commit nobody sees it"
    assert await ready(app) == 3
    assert (await app.get(one)).payload == b'{"to":"a"}'
    late = await app.get(many[1])
    assert late.due_at - late.enqueued_at == 60_000


async def test_it_was_never_there_if_the_transaction_rolls_back(app: Redrive, url: str, way: Way) -> None:
    with suppress(Rollback):
        async with way(url) as connection:
            await app.enqueue("emails", {"to": "a"}, within=connection, id="mine")
            raise Rollback
    assert await ready(app) == 0
    assert not (await app.enqueue("emails", {"to": "a"}, id="mine")).duplicate


async def test_a_repeat_in_another_transaction_is_a_duplicate(app: Redrive, url: str, way: Way) -> None:
    await app.enqueue("emails", {"to": "a"}, id="mine")
    async with way(url) as connection:
        assert (await app.enqueue("emails", {"to": "a"}, id="mine", within=connection)).duplicate
        assert not (await app.enqueue("emails", {"to": "b"}, id="other", within=connection)).duplicate
    assert await ready(app) == 2


async def test_a_repeat_into_an_encrypted_queue_is_a_duplicate_and_a_refusal_spares_the_transaction(
    app: Redrive, url: str, way: Way
) -> None:
    """Encrypted, the same work never looks the same."""
    app.queue("cards", encrypt=True)
    async with way(url) as connection:
        with pytest.raises(EncryptionKeyMissing):
            await app.enqueue("cards", {"n": 1}, id="mine", within=connection)
        store_of(app).use_keys(Keyring({"k1": bytes(32)}, current="k1"))
        assert not (await app.enqueue("cards", {"n": 1}, id="mine", within=connection)).duplicate
        assert (await app.enqueue("cards", {"n": 1}, id="mine", within=connection)).duplicate
        with pytest.raises(Conflict, match="id 'mine' is taken"):
            await app.enqueue("cards", {"n": 2}, id="mine", within=connection)
    item = await app.get("mine")
    assert (item.payload, item.sealed) == (b'{"n":1}', "")


async def test_other_work_under_an_id_of_the_same_transaction_is_refused(app: Redrive, url: str, way: Way) -> None:
    """Nobody but the transaction itself sees that the id is taken."""
    app.queue("calls")
    async with way(url) as connection:
        await app.enqueue("emails", {"to": "a"}, id="mine", within=connection)
        assert (await app.enqueue("emails", {"to": "a"}, id="mine", within=connection)).duplicate
        with pytest.raises(Conflict, match="id 'mine' is taken by an item with another payload"):
            await app.enqueue("emails", {"to": "b"}, id="mine", within=connection)
        with pytest.raises(Conflict, match="id 'mine' is taken by an item with queue 'emails'"):
            await app.enqueue("calls", {"to": "a"}, id="mine", within=connection)
    assert (await app.get("mine")).payload == b'{"to":"a"}'


async def test_it_goes_with_what_the_caller_writes(app: Redrive, url: str) -> None:
    """The point of it: an order and its mail, both or none."""
    schema = dict(part.split("=") for part in urlsplit(url).query.split("&"))["schema"]
    async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
        await connection.execute(f'create table "{schema}".customer_order (id text primary key)')
    for fails in (True, False):
        with suppress(Rollback):
            async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
                await connection.execute(f'insert into "{schema}".customer_order values (%s)', ("o-1",))
                await app.enqueue("emails", {"order": "o-1"}, within=connection)
                if fails:
                    raise Rollback
    async with await psycopg.AsyncConnection.connect(dsn(url)) as connection:
        orders = await (await connection.execute(f'select id from "{schema}".customer_order')).fetchall()
        await connection.execute(f'drop table "{schema}".customer_order')
    assert (orders, await ready(app)) == ([("o-1",)], 1)


async def test_a_worker_finds_it_by_looking(app: Redrive, url: str) -> None:
    seen = asyncio.Event()

    @app.handler("calls")
    async def call() -> None:
        seen.set()

    async def work() -> None:
        await app.run()

    worker = asyncio.create_task(work())
    async with psycopg_async(url) as connection:
        await app.enqueue("calls", {}, within=connection)
    async with asyncio.timeout(20):
        await seen.wait()
    await app.stop()
    await worker


async def test_django_by_its_connection(url: str) -> None:
    import django
    from django.conf import settings
    from django.db import connection, transaction

    parts = urlsplit(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()

    def program() -> tuple[int, int]:
        with blocking.Redrive(url, log=False) as app:
            app.queue("emails")
            with suppress(Rollback), transaction.atomic():
                connection.ensure_connection()
                app.enqueue("emails", {"to": "a"}, within=connection)
                raise Rollback
            none = sum(row.ready for row in app.tally().queues)
            with transaction.atomic():
                app.enqueue("emails", {"to": "a"}, within=connection)
                app.enqueue("emails", {"to": "b"}, within=connection.connection)
            both = sum(row.ready for row in app.tally().queues)
        connection.close()
        with blocking.Redrive(url, log=False) as app:
            app.queue("emails")
            with pytest.raises(ConfigError, match="Django has not connected yet"):
                app.enqueue("emails", {}, within=connection)
        return none, both

    assert await aside(program) == (0, 2)


# --- what cannot be joined ---


@pytest.mark.parametrize("what", [object(), "postgresql://host/db", 7])
async def test_what_is_no_connection_is_refused(app: Redrive, what: object) -> None:
    with pytest.raises(ConfigError, match=r"within: a .* is not a connection") as error:
        await app.enqueue("emails", {}, within=what)
    assert "psycopg" in error.value.hint


async def test_a_connection_to_another_kind_of_database_is_refused(app: Redrive) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.begin() as connection, pytest.raises(ConfigError, match="within: it is a connection to sqlite"):
        await app.enqueue("emails", {}, within=connection)
    engine.dispose()


async def test_a_database_without_the_schema_is_named(app: Redrive, url: str) -> None:
    other = f"{urlsplit(url)._replace(path='/postgres', query='').geturl()}"
    with pytest.raises(ConfigError, match="within: its database has no redrive in the schema"):
        async with await psycopg.AsyncConnection.connect(other) as connection:
            await app.enqueue("emails", {}, within=connection)


async def test_a_transaction_that_has_failed_already_says_so(app: Redrive, url: str, way: Way) -> None:
    async def fail(connection: Any) -> None:
        """Break the caller's own transaction by its own means."""
        if hasattr(connection, "exec_driver_sql"):
            ran: Any = connection.exec_driver_sql("select 1/0")
        elif isinstance(connection, Session | alchemy.AsyncSession):
            ran = connection.execute(sqlalchemy.text("select 1/0"))
        elif hasattr(connection, "execute"):
            ran = connection.execute("select 1/0")
        else:
            ran = connection.cursor().execute("select 1/0")
        if isinstance(ran, Awaitable):
            await ran

    with suppress(Rollback):
        async with way(url) as connection:
            with pytest.raises(Exception, match="zero"):
                await fail(connection)
            with pytest.raises(StoreUnavailable, match="nothing was added, your transaction failed"):
                await app.enqueue("emails", {}, within=connection)
            raise Rollback
    assert await ready(app) == 0


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_stores_without_transactions_to_join_say_so(store_url: Callable[[str], str], kind: str) -> None:
    app = Redrive(store_url(kind), log=False)
    app.queue("emails")
    async with app:
        with pytest.raises(ConfigError, match=r"within: a .* store cannot join your transaction"):
            await app.enqueue("emails", {}, within=object())
