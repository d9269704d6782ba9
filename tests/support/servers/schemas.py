"""A fresh schema for each test, quickly.

To make all tables takes longer than many a test. So a schema whose test is over is emptied and given to the next one.
Where somebody may still be at work for the old test it gets a new name, under which they find nothing. Only the catalog
is asked about what is in it. A schema that a test has altered is dropped, and so is one of which the server has made
statistics.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from redrive.stores.url import store_from_url
from tests.support import held
from tests.support.servers import shared, warm
from tests.support.servers.server import with_options
from tests.support.templates import run_apart

PREFIX = "redrive_test_"
_LIMITS = "-c lock_timeout=10s -c statement_timeout=30s -c client_min_messages=warning -c check_function_bodies=off"

_FUNCTIONS = Path(__file__).with_name("recycle.sql")
_MENTIONING = "select pg_get_functiondef(oid) from pg_proc where pronamespace = %s and position(%s in prosrc) > 0"


LARGE = 64 * 2**10
"""Bytes. The rows of a smaller table are deleted; to truncate it takes longer, and makes every session plan anew."""


@dataclass(frozen=True)
class Pristine:
    """What a schema is like before its first test."""

    oid: int
    shape: str
    seeds: Jsonb
    """Tables that are not empty, and what is in them."""


class Schemas:
    """Of one process and one server. `make` fills a schema that does not exist yet, by its URL."""

    def __init__(self, where: shared.Shared, make: Callable[[str], None]) -> None:
        self._where = where
        self._make = make
        self._connection = psycopg.connect(where.admin, autocommit=True, options=_LIMITS, client_encoding="utf8")
        self._connection.execute(_FUNCTIONS.read_bytes())
        self._free: list[tuple[str, Pristine]] = []
        self._shelf = warm.shelf()
        self._shelf.serve(where.url)
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
        doubts = self._shelf.doubts
        try:
            yield self.url(name)
        finally:
            doubtful = self._shelf.doubts > doubts or self._shelf.in_use(name)
            self._recycle(name, pristine, rename=doubtful)

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
        oid = self._one("select to_regnamespace(%s)::oid", name)
        assert oid is not None, f"there is no schema {name} after it was made"
        shape = self._one("select pg_temp.shape(%s, %s)", oid, name)
        return name, Pristine(oid, shape, Jsonb(self._one("select pg_temp.seeds(%s, %s)", oid, name)))

    def _recycle(self, name: str, was: Pristine, *, rename: bool) -> None:
        with self._connection.transaction() if rename else contextlib.nullcontext():
            if not self._one("select pg_temp.recycle(%s, %s, %s, %s, %s)", was.oid, name, was.shape, was.seeds, LARGE):
                self.drop(name)
                return
            if rename:
                name = self._rename(name, was.oid)
        self._free.append((name, was))

    def _rename(self, old: str, oid: int) -> str:
        new = _name()
        functions = [text for (text,) in self._connection.execute(_MENTIONING, (oid, old))]
        rename = sql.SQL("alter schema {} rename to {}").format(sql.Identifier(old), sql.Identifier(new))
        self._connection.execute(rename)
        if functions:
            # What they do is text to the server, in which the name stays as it was.
            self._connection.execute(";\n".join(functions).replace(old, new).encode())
        return new

    def _one(self, query: LiteralString, *values: object) -> Any:
        row = self._connection.execute(query, values).fetchone()
        assert row is not None
        return row[0]


def schemas() -> Schemas:
    """Those of this process: a connection does not survive a fork."""
    return _schemas(os.getpid())


@functools.cache
def _schemas(pid: int) -> Schemas:
    where = shared.postgres()
    with held.lasting():
        made = Schemas(where, open_once)
    atexit.register(lambda: made.close() if os.getpid() == pid else None)
    return made


@contextlib.contextmanager
def apart() -> Iterator[str]:
    """The URL of one that was just made, on a server where nobody else does anything meanwhile."""
    where = shared.postgres_apart()
    name = _name()
    url = with_options(where.url, {"schema": name})
    open_once(url)
    try:
        yield url
    finally:
        with psycopg.connect(where.admin, autocommit=True, options=_LIMITS) as connection:
            connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


def open_once(url: str) -> None:
    """As any user would: the store makes what it needs."""

    async def open_and_close() -> None:
        store = await store_from_url(url).open()
        await store.close()

    run_apart(open_and_close())


def _name() -> str:
    return PREFIX + secrets.token_hex(6)
