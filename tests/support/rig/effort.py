"""How much a store's engine has done, by its own counters: what a busy machine cannot change.

SQLite: steps of its machine, in hundreds. PostgreSQL: pages of tables and indexes looked at, and
entries of them, for a page of what is dead may have hundreds. Redis: commands.

PostgreSQL's planner begins with the worst that statistics may tell it: see `_believe_empty`.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import psycopg
import redis
from psycopg import sql

from tests.support.servers import schemas
from tests.support.servers.redis import private_redis
from tests.support.stores import fresh_store

Effort = Callable[[], int]
"""To be asked while nobody has the store open."""

STEPS = 100
PATIENCE = 10.0

_LOOKED_AT = """
    select sum(looked_at)::bigint from (
        select heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)
            + coalesce(toast_blks_read + toast_blks_hit, 0) as looked_at
        from pg_statio_all_tables where schemaname = %(schema)s
        union all
        select seq_tup_read from pg_stat_all_tables where schemaname = %(schema)s
        union all
        select idx_tup_read from pg_stat_all_indexes where schemaname = %(schema)s
    ) as each
"""
_BELIEVED = """
    select relname, relpages > 0 and reltuples = 0 from pg_class
    where relnamespace = (%(schema)s)::regnamespace and relname in ('course', 'item') order by relname
"""
_TABLES = "select relname from pg_class where relnamespace = (%(schema)s)::regnamespace and relkind = 'r'"
_NEEDED = """
    select attname, format_type(atttypid, null) like '%%[]' from pg_attribute
    where attrelid = (%(table)s)::regclass and attnum > 0 and attnotnull and not atthasdef and attidentity = ''
"""
_THERE = "select count(*) from pg_stat_activity where application_name = %(name)s"


@contextlib.contextmanager
def measured(kind: str, folder: Path) -> Iterator[tuple[str, Effort]]:
    """The URL of a fresh store, and the effort it has made so far."""
    with {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis}[kind](folder) as made:
        yield made


@contextlib.contextmanager
def _sqlite(folder: Path) -> Iterator[tuple[str, Effort]]:
    count = itertools.count(1)
    made = [0]
    really = sqlite3.connect

    def note() -> int:
        made[0] = next(count)
        return 0

    def connect(*args: object, **kwargs: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = really(*args, **kwargs)  # type: ignore[call-overload]  # passed on
        connection.set_progress_handler(note, STEPS)
        return connection

    with mock.patch("sqlite3.connect", connect), fresh_store("sqlite", folder) as url:
        yield f"{url}?binding=stdlib", lambda: made[0]


@contextlib.contextmanager
def _postgres(_folder: Path) -> Iterator[tuple[str, Effort]]:
    name = f"effort-{secrets.token_hex(4)}"
    with schemas.apart() as url:
        parts = urlsplit(url)
        (schema,) = parse_qs(parts.query)["schema"]
        address = parts._replace(query="").geturl()
        _believe_empty(address, schema)

        def looked_at() -> int:
            """A server process tells what it did when it ends, which may be after its client has gone."""
            with psycopg.connect(address, autocommit=True) as connection:
                deadline = time.monotonic() + PATIENCE
                while _number(connection, _THERE, name=name):
                    assert time.monotonic() < deadline, "the store is still open"
                    time.sleep(0.005)  # noqa: TID251 - another process needs real time to end
                return _number(connection, _LOOKED_AT, schema=schema)

        yield f"{url}&application_name={name}", looked_at


def _believe_empty(address: str, schema: str) -> None:
    """As a table is known to the planner that was analyzed while its rows were gone, but not yet their pages.

    That comes by itself where a table fills and empties. It is then believed to have next to no rows in any number of
    pages, and so it stays until the next ANALYZE: to walk a whole index looks as cheap as to look up one key.
    """
    with psycopg.connect(address, autocommit=True) as connection:
        for (name,) in connection.execute(_TABLES, {"schema": schema}).fetchall():
            table = sql.Identifier(schema, name)
            needed = connection.execute(_NEEDED, {"table": table.as_string()}).fetchall()
            add = sql.SQL("insert into {} ({}) values ({}) returning ctid::text").format(
                table,
                sql.SQL(", ").join([sql.Identifier(column) for column, _ in needed]),
                sql.SQL(", ").join(["{}" if is_array else "0" for _, is_array in needed]),
            )
            added = connection.execute(add).fetchone()
            assert added is not None, f"nothing was added to {name}"
            connection.execute(sql.SQL("delete from {} where ctid = {}::tid").format(table, added[0]))
            connection.execute(sql.SQL("analyze {}").format(table))
    still_believe_empty(address, schema)


def still_believe_empty(address: str, schema: str) -> None:
    """Or else somebody made statistics meanwhile, and nothing is proved."""
    with psycopg.connect(address, autocommit=True) as connection:
        believed = connection.execute(_BELIEVED, {"schema": schema}).fetchall()
    assert believed == [("course", True), ("item", True)], "the statistics are not what they are meant to be"


def _number(connection: psycopg.Connection, query: str, **values: str) -> int:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None, "a sum has one row"
    return int(row[0])


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[tuple[str, Effort]]:
    # What it counts, it counts for all its clients, so it is one of its own.
    with private_redis() as server, redis.Redis.from_url(server.url()) as client:

        def commands() -> int:
            return sum(each["calls"] for each in client.info("commandstats").values())

        yield server.url(namespace="effort"), commands
