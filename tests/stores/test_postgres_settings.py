"""What administrators set for users and databases: none of it matters, or one error says what to change."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from redrive.core.acts import Cancel
from redrive.core.select import Match
from redrive.core.verbs import NewEntry
from redrive.errors import ConfigError, StoreForbidden, StoreUnavailable
from redrive.stores import migrate, script
from redrive.stores.url import store_from_url
from tests.stores.postgres_hot_kit import asking, failed, finished, news
from tests.stores.postgres_kit import act
from tests.support.held import lasting
from tests.support.servers.pooler import Pooler, private_pooler
from tests.support.servers.postgres import PostgresServer, private_postgres

pytestmark = pytest.mark.slow

HARMLESS = (
    "client_min_messages = debug5",
    "standard_conforming_strings = off",
    "bytea_output = escape",
    "row_security = off",
    "array_nulls = off",
    "transform_null_equals = on",
    "enable_indexscan = off",
    "default_transaction_deferrable = on",
    "check_function_bodies = off",
    "timezone = 'Asia/Kathmandu'",
)
PATHS = ("search_path = ''", "search_path = public, pg_catalog")
OVERRULED = (
    "default_transaction_isolation = 'serializable'",
    "statement_timeout = '1ms'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
)
"""By what the store sets for its own connections, where no pooler is in between."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with private_postgres() as server:
        admin(server, "grant all on schema public to redrive")
        # Whoever looked for ours by their bare names would find these.
        for name in ("item", "course", "counter", "migration", "queue", "letter"):
            admin(server, f"create table public.{name} (strange integer)")
        admin(server, "create function public.now_ms(bigint) returns bigint language sql as 'select 1::bigint / 0'")
        yield server


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[Pooler]:
    with private_pooler(server.url()) as pooler:
        yield pooler


@pytest.fixture
def schema(server: PostgresServer) -> Iterator[str]:
    """The name of one that is not there yet."""
    name = f"s_{secrets.token_hex(6)}"
    yield name
    admin(server, f"drop schema if exists {name} cascade")


def admin(server: PostgresServer, *statements: str) -> None:
    with psycopg.connect(server.url(user="postgres"), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@contextmanager
def set_for_user(server: PostgresServer, *settings: str, pooler: Pooler | None = None) -> Iterator[None]:
    """For all new connections. A pooler has old ones, until it is started again."""
    admin(server, *(f"alter role redrive set {setting}" for setting in settings))
    again(pooler)
    try:
        yield
    finally:
        admin(server, "alter role redrive reset all")
        again(pooler)


def again(pooler: Pooler | None) -> None:
    if pooler is not None:
        pooler.stop()
        with lasting():
            pooler.start()


async def works(url: str) -> None:
    """All that a store does with its server in other ways than the rest: functions, transactions, looks."""
    store = await store_from_url(url).open()
    try:
        await store.put(news(20))
        items = (await store.lease(asking(20))).items
        assert [item.id for item in items] == [item.id for item in news(20)]
        await store.settle([*finished(items[:5]), *(failed(item) for item in items[5:9])])
        assert len((await store.find(Match("state", "=", "dead"))).items) == 2
        await store.amend(Match("state", "=", "ready"), Cancel(), act())
        await store.append([NewEntry("t", b"{}")])
        (row,) = (await store.tally()).queues
        assert (row.done, row.leased, row.open, row.ready, row.cancelled) == (5, 11, 2, 0, 6)
        assert (await store.check()).findings == ()
    finally:
        await store.close()


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_set_for_the_user_does_not_matter(server: PostgresServer, schema: str, path: str) -> None:
    with set_for_user(server, *HARMLESS, *OVERRULED, path):
        await works(server.url(schema=schema))


async def test_nor_behind_a_pooler(server: PostgresServer, pooler: Pooler, schema: str) -> None:
    with set_for_user(server, *HARMLESS, PATHS[0], pooler=pooler):
        await works(pooler.url(server.url(schema=schema), notify="off"))


async def test_a_pooler_leaves_the_users_isolation_as_it_is(
    server: PostgresServer, pooler: Pooler, schema: str
) -> None:
    url = pooler.url(server.url(schema=schema), notify="off")
    isolation = "default_transaction_isolation = 'repeatable read'"
    with (
        set_for_user(server, isolation, pooler=pooler),
        pytest.raises(ConfigError, match="default_transaction_isolation is repeatable read") as caught,
    ):
        await works(url)
    assert caught.value.hint.startswith("alter role \"redrive\" set default_transaction_isolation = 'read committed';")


async def test_a_pooler_leaves_the_users_time_limit_as_it_is(
    server: PostgresServer, pooler: Pooler, schema: str
) -> None:
    url = pooler.url(server.url(schema=schema), notify="off")
    store = await store_from_url(url).open()
    with (
        set_for_user(server, "statement_timeout = '100ms'", pooler=pooler),
        psycopg.connect(server.url(user="postgres")) as holding,
    ):
        holding.execute(f"lock table {schema}.item".encode())
        with pytest.raises(StoreUnavailable, match="the server took too long") as caught:
            await store.put(news(1))
    await store.close()
    assert "with notify=off the user's own statement_timeout holds" in caught.value.hint


async def test_a_user_that_may_only_read(server: PostgresServer, schema: str) -> None:
    with (
        set_for_user(server, "default_transaction_read_only = on"),
        pytest.raises(StoreForbidden, match="is read-only") as caught,
    ):
        await works(server.url(schema=schema))
    assert caught.value.hint.startswith('alter role "redrive" set default_transaction_read_only = off;')


async def test_a_schema_that_holds_tables_of_others(server: PostgresServer, schema: str) -> None:
    hint = "give redrive a schema of its own, as schema=redrive in the store's URL"
    with pytest.raises(ConfigError, match="holds something else under a name of ours") as caught:
        await works(server.url(schema="public"))
    assert caught.value.hint == hint
    admin(server, f"create schema {schema} authorization redrive", f"create table {schema}.item (strange integer)")
    with pytest.raises(ConfigError, match='relation "item" already exists') as caught:
        await works(server.url(schema=schema))
    assert caught.value.hint == hint


async def test_an_encoding_that_cannot_hold_every_text(server: PostgresServer) -> None:
    admin(server, "create database narrow owner redrive template template0 encoding 'LATIN1'")
    with pytest.raises(ConfigError, match="the encoding of the database is LATIN1") as caught:
        await works(server.url(database="narrow"))
    assert "encoding 'UTF8'" in caught.value.hint


async def test_a_user_that_may_create_nothing_works_in_what_was_made_for_it(
    server: PostgresServer, schema: str
) -> None:
    """As where an administrator runs what `redrive db sql` prints."""
    admin(server, "create database made", "revoke all on database made from public")
    admin(server, "grant connect on database made to redrive")
    text = script.postgres(schema, migrate.known("postgres"))
    with psycopg.connect(server.url(user="postgres", database="made"), autocommit=True) as connection:
        connection.execute(text.encode())
        connection.execute(f"grant usage on schema {schema} to redrive".encode())
        connection.execute(f"grant select, insert, update, delete on all tables in schema {schema} to redrive".encode())
        connection.execute(f"grant usage on all sequences in schema {schema} to redrive".encode())
    await works(server.url(database="made", schema=schema))
