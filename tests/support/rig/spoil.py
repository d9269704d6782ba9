"""Servers that refuse to store letters, in ways in which real ones do, until they are mended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import redis
from psycopg import sql

from tests.support.servers.redis import private_redis
from tests.support.stores import fresh_store

Mend = Callable[[], None]
Spoil = Callable[[], Mend]

SAID = {"full": "53100", "read-only": "25006"}
"""What PostgreSQL says by number when a disk is full, and when it takes no writes."""


@contextlib.contextmanager
def spoilable(kind: str, how: str, folder: Path) -> Iterator[tuple[str, Spoil]]:
    """The URL of a store, and what spoils it."""
    if kind == "postgres":
        with fresh_store(kind, folder) as url:
            yield url, lambda: _postgres_refuses(url, SAID[how])
    else:
        # What makes it refuse holds for the whole server, so it is one of its own.
        with private_redis() as server:
            yield server.url(namespace="spoiled"), lambda: _redis_refuses(server.url(), how)


def _postgres_refuses(url: str, code: str) -> Mend:
    parts = urlsplit(url)
    schema = sql.Identifier(parse_qs(parts.query)["schema"][0])
    address = parts._replace(query="").geturl()

    def execute(*statements: str) -> None:
        with psycopg.connect(address, autocommit=True) as connection:
            for statement in statements:
                connection.execute(sql.SQL(statement).format(schema=schema, code=sql.Literal(code)))

    execute(
        "create function {schema}.refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'no room' using errcode = {code}; end $$",
        "create trigger refuse before insert on {schema}.letter for each row execute function {schema}.refuse()",
    )
    return lambda: execute("drop function {schema}.refuse() cascade")


def _redis_refuses(url: str, how: str) -> Mend:
    changes = {
        "replica": (("replicaof", "127.0.0.1", "1"), ("replicaof", "no", "one")),
        "alone": (("config", "set", "min-replicas-to-write", "1"), ("config", "set", "min-replicas-to-write", "0")),
        "full": (("config", "set", "maxmemory", "1"), ("config", "set", "maxmemory", "0")),
    }
    spoil, mend = changes[how]

    def execute(command: tuple[str, ...]) -> None:
        with redis.Redis.from_url(url) as client:
            client.execute_command(*command)

    execute(spoil)
    return lambda: execute(mend)
