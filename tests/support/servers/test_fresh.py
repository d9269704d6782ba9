"""A fresh schema or namespace for each test; and what is said where there is no server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from tests.support.servers import binaries, namespaces, pooler, shared
from tests.support.servers.absent import absent
from tests.support.servers.postgres import private_postgres
from tests.support.servers.redis import FLAVOURS, private_redis
from tests.support.servers.schemas import Schemas
from tests.support.servers.server import ServerFailed

pytestmark = pytest.mark.slow


CONTENTS = """
    create schema {0};
    create table {0}.migration (number int);
    insert into {0}.migration values (1);
    create table {0}.item (id int generated always as identity, body text) with (autovacuum_enabled = false);
    create function {0}.count() returns bigint language sql as 'select count(*) from {0}.item';
"""


def name_in(url: str) -> str:
    return url.rpartition("=")[2]


@pytest.fixture
def pool() -> Iterator[Schemas]:
    where = shared.postgres()

    def make(url: str) -> None:
        name = name_in(url)
        with psycopg.connect(where.url) as connection:
            connection.execute(CONTENTS.format(name).encode())

    made = Schemas(where, make)
    yield made
    made.close()


def run(query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(shared.postgres().url, autocommit=True) as connection:
        found = connection.execute(query.encode())
        return found.fetchall() if found.description else []


def exists(name: str) -> bool:
    return run(f"select to_regnamespace('{name}') is not null") == [(True,)]


@pytest.mark.parametrize("doubtful", [True, False])
@pytest.mark.parametrize("rows", [2, 10_000])
def test_a_schema_is_emptied_and_given_on(pool: Schemas, *, doubtful: bool, rows: int) -> None:
    """Under a new name, if somebody may still be at work for the old one."""
    with pool.fresh() as url:
        first = name_in(url)
        run(f"insert into {first}.item (body) select 'a' from generate_series(1, {rows})")
        if doubtful:
            subprocess.run(["true"], check=True)
    with pool.fresh() as url:
        second = name_in(url)
        assert (second != first) is doubtful
        assert exists(first) is not doubtful
        assert run(f"insert into {second}.item (body) values ('c') returning id") == [(1,)]
        assert run(f"select {second}.count()") == [(1,)]
        assert run(f"select number from {second}.migration") == [(1,)]
    assert pool.made == 1


def test_two_at_a_time_are_two(pool: Schemas) -> None:
    with pool.fresh() as one, pool.fresh() as two:
        run(f"insert into {name_in(one)}.item (body) values ('a')")
        assert run(f"select count(*) from {name_in(two)}.item") == [(0,)]
    assert pool.made == 2


@pytest.mark.parametrize(
    "change",
    [
        "alter table {0}.item add column more int",
        "create index on {0}.item (body)",
        "drop table {0}.item",
        "create or replace function {0}.count() returns bigint language sql as 'select 2 * count(*) from {0}.item'",
        "create function {0}.more() returns int language sql as 'select 1'",
        "alter table {0}.item set (fillfactor = 50)",
        "update {0}.migration set number = 2",
        "analyze {0}.item",
        "grant usage on schema {0} to public",
        "drop schema {0} cascade",
    ],
)
def test_a_schema_that_a_test_changed_is_not_given_on(pool: Schemas, change: str) -> None:
    with pool.fresh() as url:
        spoilt = name_in(url)
        run(change.format(spoilt))
    assert not exists(spoilt)
    with pool.fresh() as url:
        assert run(f"select count(*) from {name_in(url)}.item") == [(0,)]
    assert pool.made == 2


def test_a_schema_that_is_not_there_yet(pool: Schemas) -> None:
    with pool.missing() as url:
        name = name_in(url)
        assert not exists(name)
        run(f"create schema {name}")
    assert not exists(name)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_namespace_ends_with_its_test(flavour: str) -> None:
    with redis.Redis.from_url(shared.redis(flavour).url) as client, namespaces.fresh(flavour) as other:
        client.set(f"{{{name_in(other)}}}:kept", 1)
        with namespaces.fresh(flavour) as url:
            keys = [f"{{{name_in(url)}}}:{n}" for n in range(3000)]
            client.mset(dict.fromkeys(keys, 1))
            assert client.exists(*keys) == 3000
        assert client.exists(*keys) == 0
        assert client.exists(f"{{{name_in(other)}}}:kept")


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "postgres_programs", tuple)
    monkeypatch.setattr(binaries, "valkey_program", lambda: None)
    monkeypatch.setattr(binaries, "redis_program", lambda: None)


@pytest.mark.parametrize("private", [private_postgres, private_redis])
@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_what_is_missing_is_said(
    private: object, ci: str, outcome: type[BaseException], no_programs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    assert callable(private)
    with pytest.raises(outcome, match=r"there is no .*: pip install .*REDRIVE_TEST_"), private():
        pass


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_servers_of_the_system_are_missed_too(
    ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only those of the wheels: beside Valkey a real Redis, and PgBouncer."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pooler, "ELSEWHERE", "")
    for ask in (binaries.redis_program, pooler.program):
        ask.cache_clear()
    try:
        with pytest.raises(outcome, match="apt-get install redis-server"), private_redis(flavour="redis"):
            pass
        with pytest.raises(outcome, match="apt-get install pgbouncer"), pooler.private_pooler("postgresql://none"):
            pass
    finally:
        for ask in (binaries.redis_program, pooler.program):
            ask.cache_clear()


def test_another_version_is_told_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert isinstance(absent("PostgreSQL 16", "install it", another_version=True), pytest.skip.Exception)


def test_a_named_server_that_is_not_there_is_no_reason_to_start_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TEST_POSTGRES", "postgresql://me:s3cret@127.0.0.1:1/none")
    monkeypatch.setenv("REDRIVE_TEST_REDIS", "redis://me:s3cret@127.0.0.1:1/0")
    for ask in (shared.postgres.__wrapped__, shared.redis.__wrapped__):
        with pytest.raises(ServerFailed, match=r"^REDRIVE_TEST_.* cannot be used") as caught:
            ask()
        assert "s3cret" not in str(caught.value)
