"""Opening a PostgreSQL store: the tables come by themselves, and whatever is in the way gets one clear error."""

from __future__ import annotations

import asyncio
import logging
import secrets
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote, urlsplit

import pytest

from redrive.core.select import EVERYTHING
from redrive.errors import (
    BadStoreURL,
    ConfigError,
    MissingExtra,
    RedriveError,
    StoreCorrupt,
    StoreForbidden,
    StoreTooNew,
    StoreUnavailable,
)
from redrive.stores import script
from redrive.stores.postgres import PostgresStore, install
from redrive.stores.postgres.connect import parameters
from redrive.stores.postgres.install import Facts
from redrive.stores.postgres.options import Options, hash_of
from redrive.stores.url import store_from_url
from tests.stores.postgres_hot_kit import *  # noqa: F403 - the fixtures are meant
from tests.stores.postgres_hot_kit import Open, asking, finished, news, session_of, unopened
from tests.stores.postgres_kit import behind, execute, rows, schema_of
from tests.stores.upkeep_kit import fill
from tests.support.migrations import add_migration
from tests.support.servers import shared
from tests.support.servers.postgres import SEALED
from tests.support.servers.server import with_options

NEWEST = script.newest("postgres")
PASSWORD = "s3cret/pass word"  # noqa: S105 - of roles that live as long as a test


def as_user(url: str, user: str, password: str | None = None, database: str | None = None) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    secret = "" if password is None else f":{quote(password, safe='')}"
    path = parts.path if database is None else f"/{database}"
    return parts._replace(netloc=f"{user}{secret}@{host}", path=path).geturl()


async def refusal(url: str) -> RedriveError:
    """What opening raises; with everything that could be shown of it searched for the password."""
    with pytest.raises(RedriveError) as caught:
        await store_from_url(url).open()
    shown = "".join(traceback.format_exception(caught.value))
    for form in (PASSWORD, quote(PASSWORD, safe=""), SEALED[1], quote(SEALED[1], safe="")):
        assert form not in shown
        assert form not in str(caught.value)
        assert form not in repr(caught.value)
    return caught.value


@pytest.fixture
async def admin() -> str:
    return with_options(shared.postgres().admin, {"schema": "public"})


@pytest.fixture
async def role(admin: str) -> AsyncIterator[str]:
    """Somebody who may log in, and nothing else."""
    name = f"redrive_test_{secrets.token_hex(4)}"
    await execute(admin, f"create role {name} login password '{PASSWORD}'")
    yield name
    await execute(admin, f"drop owned by {name}", f"drop role {name}")


# --- migrations ---


async def test_the_first_of_many_openers_makes_the_tables(unused: str) -> None:
    stores = [unopened(unused) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    assert {store.info().schema for store in stores} == {NEWEST}
    assert await rows(unused, "select number from migration") == [(NEWEST,)]
    for store in stores:
        await store.put(news(1))
        await store.close()


async def test_of_many_openers_one_migrates(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more = add_migration(monkeypatch, "postgres")
    stores = [unopened(url) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    assert {store.info().schema for store in stores} == {more.number}
    assert await rows(url, "select number from migration order by 1") == [(NEWEST,), (more.number,)]
    for store in stores:
        await store.close()


async def test_an_older_schema_is_brought_up_to_date_with_all_it_holds(
    url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened()
    await fill(store)
    before = await store.find(EVERYTHING)
    with monkeypatch.context() as patch:
        more = add_migration(patch, "postgres")
        newer = await opened()
        assert newer.info().schema == more.number
        assert await newer.find(EVERYTHING) == before
        assert (await newer.check()).findings == ()
        assert (await newer.settle(finished(before.items[-1:]))).answers[0].verdict == "applied"
    assert await rows(url, "select count(*) from more") == [(len(before.items),)]
    assert await rows(url, "select checksum from migration where number = 2") == [(more.checksum,)]
    with pytest.raises(StoreTooNew, match=f"schema {more.number}"):
        await unopened(url).open()


async def test_a_migration_brings_the_functions_of_this_release(
    url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = "select proname, md5(string_agg(prosrc, '' order by prosrc)) from pg_proc p, pg_namespace n"
    functions += f" where pronamespace = n.oid and nspname = '{schema_of(url)}' group by proname order by proname"
    ours = await rows(url, functions)
    older = "create or replace function elect(pinned bigint, what text, who text, ttl bigint) returns boolean"
    await execute(url, f"{older} language sql as 'select false'")
    assert await rows(url, functions) != ours
    add_migration(monkeypatch, "postgres")
    await opened()
    assert await rows(url, functions) == ours


async def test_a_migration_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        add_migration(patch, "postgres", "create table {schema}.half ();\ninsert into {schema}.nowhere values (1);\n")
        with pytest.raises(StoreUnavailable, match="42P01"):
            await unopened(url).open()
    assert await rows(url, "select to_regclass('half')::text, count(*) from migration") == [(None, 1)]
    await (await unopened(url).open()).close()


async def test_what_must_be_there_is_not_made(unused: str) -> None:
    store = unopened(unused)
    with pytest.raises(StoreUnavailable, match="no redrive in the schema"):
        await store.open_existing()
    with pytest.raises(StoreUnavailable, match="is not open"):
        await store.tally()
    await store.open()
    await store.put(news(1))
    await store.close()
    again = await unopened(unused).open_existing()
    assert [row.ready for row in (await again.tally()).queues] == [1]
    await again.close()


async def test_a_failed_migration_leaves_nothing(unused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(install, "functions", lambda _: ["create function broken("])
        with pytest.raises(StoreUnavailable, match="42601"):
            await unopened(unused).open()
    there = "select count(*) from pg_namespace where nspname = %s"
    assert await rows(unused, there, (schema_of(unused),)) == [(0,)]
    store = await unopened(unused).open()
    await store.close()


async def test_a_newer_schema_is_refused(url: str) -> None:
    await execute(url, "insert into migration values (999, 'x', 0)")
    with pytest.raises(StoreTooNew, match="schema 999"):
        await unopened(url).open()
    await execute(url, "delete from migration where number = 999")


async def test_a_schema_of_other_making_is_refused(url: str) -> None:
    await execute(url, "update migration set checksum = 'x'")
    with pytest.raises(StoreCorrupt, match="migration 1 was applied with other contents"):
        await unopened(url).open()


async def test_opening_what_is_up_to_date_writes_and_locks_nothing(url: str, opened: Open) -> None:
    async with behind(url) as connection:
        await connection.execute(b"begin")
        # Whoever needed more than to look would wait for these.
        await connection.execute(b"lock table migration, item, course in share update exclusive mode")
        await connection.execute(
            b"select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f'"{schema_of(url)}".migration',)
        )
        await opened()
        await connection.execute(b"rollback")


# --- rights ---


async def test_a_role_with_the_least_rights_can_work(url: str, admin: str, role: str) -> None:
    schema = schema_of(url)
    await execute(
        admin,
        f"grant usage on schema {schema} to {role}",
        f"grant select, insert, update, delete on all tables in schema {schema} to {role}",
        f"grant usage on all sequences in schema {schema} to {role}",
    )
    store = await store_from_url(as_user(url, role, PASSWORD)).open()
    await store.put(news(3))
    assert len((await store.lease(asking())).items) == 3
    assert (await store.tally()).queues[0].leased == 3
    await store.close()
    await execute(admin, f"revoke insert on {schema}.letter from {role}")
    error = await refusal(as_user(url, role, PASSWORD))
    assert isinstance(error, StoreForbidden)
    assert f"the user {role} may not use letter" in error.message
    assert f'grant select, insert, update, delete on all tables in schema "{schema}" to "{role}"' in error.hint
    await execute(admin, f"revoke all on schema {schema} from {role}")


async def test_no_right_to_the_schema(url: str, role: str) -> None:
    error = await refusal(as_user(url, role, PASSWORD))
    assert isinstance(error, StoreForbidden)
    assert "permission denied for schema" in error.message
    assert "redrive db sql" in error.hint


async def test_no_right_to_make_a_schema(unused: str, role: str) -> None:
    error = await refusal(as_user(unused, role, PASSWORD))
    assert isinstance(error, StoreForbidden)
    database = urlsplit(unused).path.removeprefix("/")
    assert error.hint == f'grant create on database "{database}" to "{role}";'


async def test_no_right_to_make_tables(unused: str, admin: str, role: str) -> None:
    await execute(admin, f"create schema {schema_of(unused)}", f"grant usage on schema {schema_of(unused)} to {role}")
    error = await refusal(as_user(unused, role, PASSWORD))
    assert isinstance(error, StoreForbidden)
    assert "the tables cannot be made" in error.message
    assert f'alter schema "{schema_of(unused)}" owner to "{role}"' in error.hint


# --- servers that are not there, or not for us ---


async def test_a_missing_role(url: str) -> None:
    error = await refusal(as_user(url, "nobody_of_this_name", PASSWORD))
    assert isinstance(error, StoreForbidden)


async def test_a_missing_database(url: str) -> None:
    error = await refusal(as_user(url, urlsplit(url).username or "", database="nowhere"))
    assert isinstance(error, StoreUnavailable)
    assert error.message.startswith("there is no such database: ")
    assert error.hint == "create database nowhere;"


async def test_nobody_listens() -> None:
    error = await refusal(f"postgresql://someone:{quote(PASSWORD, safe='')}@127.0.0.1:1/x")
    assert isinstance(error, StoreUnavailable)
    assert error.message.startswith("no connection to postgresql://someone@127.0.0.1:1/x: ")
    assert error.hint == "is the server running, and this its address?"


async def test_an_unknown_host() -> None:
    error = await refusal(f"postgresql://someone:{quote(PASSWORD, safe='')}@no-such-host.invalid/x")
    assert isinstance(error, StoreUnavailable)


async def test_what_libpq_cannot_use_is_told_without_the_password() -> None:
    error = await refusal(f"postgresql://someone:{quote(PASSWORD, safe='')}@127.0.0.1:1/x?sslmode=whatever")
    assert isinstance(error, BadStoreURL | StoreUnavailable)


async def test_an_old_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "OLDEST", 99)
    error = await refusal(url)
    assert isinstance(error, ConfigError)
    assert "which is too old" in error.message
    assert error.hint == "PostgreSQL 99 or newer is needed"


async def test_a_database_that_is_read_only(url: str) -> None:
    error = await refusal(f"{url}&options={quote('-c default_transaction_read_only=on')}")
    assert isinstance(error, StoreForbidden)
    assert "is read-only" in error.message


# --- durability ---


@pytest.mark.parametrize(
    ("fsync", "full_pages", "retry", "commit", "survives"),
    [
        ("on", "on", "off", "on", "power-loss"),
        ("on", "on", "off", "remote_apply", "power-loss"),
        ("on", "on", "off", "local", "power-loss"),
        ("off", "on", "off", "on", "process-crash"),
        ("on", "off", "off", "on", "process-crash"),
        ("on", "on", "on", "on", "process-crash"),
        ("on", "on", "off", "off", "none"),
        ("off", "off", "off", "off", "none"),
    ],
)
def test_what_an_accepted_item_survives(fsync: str, full_pages: str, retry: str, commit: str, survives: str) -> None:
    facts = Facts(180_000, "18.0", False, "off", fsync, full_pages, commit, True, "u", "d", True, retry)
    assert facts.durability == survives


async def test_a_commit_that_waits_for_nothing_is_reported(
    url: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "redrive.stores"):
        store = await opened(f"&options={quote('-c synchronous_commit=off')}")
    assert store.info().durability == "none"
    assert "no crash of the server (fsync=" in caplog.text
    assert "synchronous_commit=off" in caplog.text


async def test_info_says_what_and_where_without_the_password(url: str, admin: str, role: str) -> None:
    schema = schema_of(url)
    await execute(admin, f"grant usage on schema {schema} to {role}")
    await execute(admin, f"grant all on all tables in schema {schema} to {role}")
    await execute(admin, f"grant all on all sequences in schema {schema} to {role}")
    store = await store_from_url(as_user(url, role, PASSWORD)).open()
    info = store.info()
    await store.close()
    assert info.location == f"{as_user(url, role).partition('?')[0]}?schema={schema}"
    assert info.library.startswith("PostgreSQL ")
    assert "psycopg 3" in info.library
    assert PASSWORD not in f"{store!r}{store.__dict__}"


# --- limits of every session ---


async def test_every_session_has_its_limits(opened: Open) -> None:
    session = await session_of(await opened("&timeout=2s"))
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "TimeZone", "client_encoding")
    found = [(await session.read("select current_setting(%b::text)", (name,)))[0][0] for name in names]
    assert found == ["1800ms", "1620ms", "4s", "UTC", "UTF8"]
    ((isolation,),) = await session.read("select current_setting('transaction_isolation')")
    assert isolation == "read committed"


def test_a_connection_notices_when_its_peer_is_gone() -> None:
    given = parameters(Options("postgresql://h/d", timeout=10_000))
    assert given["keepalives"] == 1
    assert given["keepalives_idle"] + given["keepalives_interval"] * given["keepalives_count"] <= 30
    assert given["tcp_user_timeout"] == 10_000
    assert given["application_name"] == "redrive"


def test_the_url_has_the_last_word() -> None:
    given = parameters(Options("postgresql://h/d?application_name=mine&keepalives_idle=99&options=-c%20work_mem%3D8MB"))
    assert given["application_name"] == "mine"
    assert given["keepalives_idle"] == "99"
    assert given["options"].startswith("-c statement_timeout=9000 ")
    assert given["options"].endswith(" -c work_mem=8MB")


def test_a_pooler_gets_no_settings() -> None:
    assert "options" not in parameters(Options("postgresql://h/d", notify=False))


# --- URLs ---


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("schema=Mine", "store.schema: 'Mine' is not a name for a schema"),
        ("schema=a;drop", "is not a name for a schema"),
        ("schema=", "is not a name for a schema"),
        (f"schema={'x' * 64}", "is not a name for a schema"),
        ("pool=0", "store.pool: must be between 1 and 1000, not 0"),
        ("pool=many", "store.pool: 'many' is not a number"),
        ("timeout=0s", "store.timeout: must be longer than nothing"),
        ("timeout=soon", "store.timeout: "),
        ("connect_timeout=-1s", "store.connect_timeout: "),
        ("notify=maybe", "store.notify: 'maybe' is neither on nor off"),
        ("poll=0s", "store.poll: must be longer than nothing"),
        ("compress_above=-1", "store.compress_above: "),
        ("speed=9", "unknown option 'speed'"),
        ("client_encoding=latin1", "unknown option 'client_encoding'"),
        ("replication=database", "unknown option 'replication'"),
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_options_that_cannot_be_used(scheme: str, query: str, says: str) -> None:
    with pytest.raises(BadStoreURL) as caught:
        store_from_url(f"{scheme}://u:{quote(PASSWORD, safe='')}@h/d?{query}")
    assert says in caught.value.message
    assert caught.value.hint
    assert quote(PASSWORD, safe="") not in str(caught.value)


@pytest.mark.parametrize(
    "rest", ["s3cret/x@h/d", "s3cret?x@h/d", "s3@cret/x@h/d", "s3@cret@h/d", "s3cret", "s3cret@h:s3cret/d", "[s3cret@h"]
)
def test_a_password_in_the_wrong_place_is_not_shown(rest: str) -> None:
    """What is special in it was not percent-encoded."""
    with pytest.raises(BadStoreURL) as caught:
        store_from_url(f"postgresql://user:{rest}")
    shown = "".join(traceback.format_exception(caught.value))
    assert "cret" not in shown.replace("secrets", "")


@pytest.mark.parametrize("hosts", ["h", "h:1", "h1,h2:2", "[::1]:5432", "[::1],h", "", "%2Frun%2Fpg"])
def test_hosts(hosts: str) -> None:
    store_from_url(f"postgresql://user:p@{hosts}/d")
    store_from_url(f"postgresql://{hosts}/d")


def test_options_that_can() -> None:
    query = "schema=mine&pool=3&timeout=2s&connect_timeout=1s&notify=off&poll=5s&compress_above=1MiB&sslmode=require"
    store = store_from_url(f"postgres://u:p%2Fw@h1:1,h2:2/d?{query}&sslrootcert=%2Fa%20b")
    assert isinstance(store, PostgresStore)
    options = store._options  # noqa: SLF001 - nothing else shows them
    assert options.url == "postgresql://u:p%2Fw@h1:1,h2:2/d?sslmode=require&sslrootcert=%2Fa%20b"
    assert (options.schema, options.pool, options.timeout, options.connect_timeout) == ("mine", 3, 2_000, 1_000)
    assert (options.notify, options.poll, options.location) == (False, 5_000, "postgresql://u@h1:1,h2:2/d?schema=mine")
    assert "p%2Fw" not in repr(options)


@pytest.mark.parametrize("make", [PostgresStore, store_from_url])
def test_no_psycopg_is_told_when_the_store_is_made(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[str], object]
) -> None:
    monkeypatch.setattr("redrive.stores.postgres.extra.find_spec", lambda _: None)
    with pytest.raises(MissingExtra) as caught:
        make("postgresql://h/d")
    assert caught.value.hint == 'pip install "redrive[postgres]"'


@pytest.mark.slow
def test_drivers_are_imported_by_those_who_need_them() -> None:
    made = "store_from_url('postgresql://h/d')"
    others = "[name for name in ('psycopg', 'sqlite3', 'redrive.stores.sqlite') if name in sys.modules]"
    code = f"import sys; from redrive.stores.url import *; {made}; print({others})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_long_name_fits_a_channel() -> None:
    long = Options("postgresql://h/d", schema="x" * 63)
    assert len(long.channel) < 63
    assert long.channel != Options("postgresql://h/d", schema="x" * 62 + "y").channel
    assert hash_of("") == 0xCBF29CE484222325
