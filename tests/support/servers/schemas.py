"""A fresh schema for each test, quickly.

To make all tables takes longer than many a test. So a schema whose test is over is emptied and given to the next one,
under a new name: whoever is still at work for the old test finds nothing. Only the catalog is asked about what is in
it. A schema that a test has altered is dropped.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from redrive.stores.url import store_from_url
from tests.support.servers import shared
from tests.support.servers.server import with_options

PREFIX = "redrive_test_"
_LIMITS = "-c lock_timeout=10s -c statement_timeout=30s -c client_min_messages=warning -c check_function_bodies=off"

_SHAPE = """
    select md5(string_agg(line, E'\\n' order by line)) from (
        select concat_ws(' ', 'relation', relname, relkind, relowner, reloptions, relacl) as line
        from pg_class where relnamespace = %(schema)s
        union all
        select concat_ws(' ', 'column', relname, attname, attnum, atttypid, attnotnull, atthasdef, attstorage)
        from pg_class join pg_attribute on attrelid = pg_class.oid
        where relnamespace = %(schema)s and relkind in ('r', 'p', 'v', 'm')
        union all
        select concat_ws(' ', 'function', proname, replace(prosrc, %(name)s, ''), proacl, proconfig)
        from pg_proc where pronamespace = %(schema)s
        union all
        select concat_ws(' ', 'constraint', conname, contype, convalidated) from pg_constraint
        where connamespace = %(schema)s
        union all
        select concat_ws(' ', 'schema', nspowner, nspacl) from pg_namespace where oid = %(schema)s
    ) as lines
"""
_WRITTEN = """
    select relname from pg_class where relnamespace = %s and relkind in ('r', 'p') and pg_relation_size(oid) > 0
"""
_RESTART = (
    "select setval(seqrelid, seqstart, false) from pg_sequence join pg_class on oid = seqrelid where relnamespace = %s"
)
_MENTIONING = "select pg_get_functiondef(oid) from pg_proc where pronamespace = %s and position(%s in prosrc) > 0"


@dataclass(frozen=True)
class Pristine:
    """What a schema is like before its first test."""

    oid: int
    shape: str
    seeds: dict[str, str]
    """Tables that are not empty, and what is in them."""


class Schemas:
    """Of one process and one server. `make` fills a schema that does not exist yet, by its URL."""

    def __init__(self, where: shared.Shared, make: Callable[[str], None]) -> None:
        self._where = where
        self._make = make
        self._connection = psycopg.connect(where.admin, autocommit=True, options=_LIMITS, client_encoding="utf8")
        self._free: list[tuple[str, Pristine]] = []
        self.made = 0

    def close(self) -> None:
        for name, _ in self._free:
            self.drop(name)
        self._connection.close()

    def url(self, name: str) -> str:
        return with_options(self._where.url, {"schema": name})

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a schema that is ready to be used, for as long as the test takes."""
        name, pristine = self._free.pop() if self._free else self._new()
        try:
            yield self.url(name)
        finally:
            self._recycle(name, pristine)

    @contextlib.contextmanager
    def missing(self) -> Iterator[str]:
        """The URL of a schema that is not there yet: for tests of how it comes to be."""
        name = _name()
        try:
            yield self.url(name)
        finally:
            self.drop(name)

    def drop(self, name: str) -> None:
        self._connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))

    def _new(self) -> tuple[str, Pristine]:
        name = _name()
        self._make(self.url(name))
        self.made += 1
        row = self._connection.execute("select oid from pg_namespace where nspname = %s", (name,)).fetchone()
        assert row is not None, f"there is no schema {name} after it was made"
        oid = int(row[0])
        seeds = {table: self._contents(name, table) for table in self._written(oid)}
        return name, Pristine(oid, self._shape(name, oid), seeds)

    def _recycle(self, name: str, pristine: Pristine) -> None:
        with self._connection.transaction():
            if self._altered(name, pristine):
                self.drop(name)
                return
            full = [table for table in self._written(pristine.oid) if table not in pristine.seeds]
            if full:
                tables = sql.SQL(", ").join(sql.Identifier(name, table) for table in full)
                self._connection.execute(sql.SQL("truncate {}").format(tables))
            self._connection.execute(_RESTART, (pristine.oid,))
            new = self._rename(name, pristine.oid)
        self._free.append((new, pristine))

    def _rename(self, old: str, oid: int) -> str:
        new = _name()
        functions = [text for (text,) in self._connection.execute(_MENTIONING, (oid, old))]
        rename = sql.SQL("alter schema {} rename to {}").format(sql.Identifier(old), sql.Identifier(new))
        self._connection.execute(rename)
        if functions:
            # What they do is text to the server, in which the name stays as it was.
            self._connection.execute(";\n".join(functions).replace(old, new).encode())
        return new

    def _altered(self, name: str, pristine: Pristine) -> bool:
        return self._shape(name, pristine.oid) != pristine.shape or any(
            self._contents(name, table) != rows for table, rows in pristine.seeds.items()
        )

    def _shape(self, name: str, oid: int) -> str:
        row = self._connection.execute(_SHAPE, {"schema": oid, "name": name}).fetchone()
        return str(row and row[0])

    def _written(self, oid: int) -> list[str]:
        return [table for (table,) in self._connection.execute(_WRITTEN, (oid,))]

    def _contents(self, name: str, table: str) -> str:
        query = sql.SQL("select md5(string_agg(t::text, E'\\n' order by t::text)) from {} t")
        row = self._connection.execute(query.format(sql.Identifier(name, table))).fetchone()
        return str(row and row[0])


def schemas() -> Schemas:
    """Those of this process: a connection does not survive a fork."""
    return _schemas(os.getpid())


@functools.cache
def _schemas(pid: int) -> Schemas:
    made = Schemas(shared.postgres(), open_once)
    atexit.register(lambda: made.close() if os.getpid() == pid else None)
    return made


def open_once(url: str) -> None:
    """As any user would: the store makes what it needs."""

    async def open_and_close() -> None:
        store = await store_from_url(url).open()
        await store.close()

    # In a thread of its own: where a test is async, this one has a loop already.
    failed: list[BaseException] = []

    def main() -> None:
        try:
            asyncio.run(open_and_close())
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits for it
            failed.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _name() -> str:
    return PREFIX + secrets.token_hex(6)
