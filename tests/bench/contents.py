"""All that is in a store, past its verbs: to be compared with what another one holds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import redis

OTHERWISE = {"redrive_migration", "migration", "nonce", "worker"}
"""When the schema was made, and what a worker was given last: no part of what happened to the items."""
DELTAS = {
    "counter": "select queue, sum(ready), sum(leased), sum(done), sum(open), sum(archived), sum(trash), sum(cancelled)"
    " from counter group by 1",
    "cause": "select cause, queue, sum(n) from cause group by 1, 2",
}
"""What is counted by many rows here and by few there: their sums are what they say."""

Contents = dict[str, Any]


def contents(url: str) -> Contents:
    look = {"sqlite": _sqlite, "postgresql": _postgres, "redis": _redis}[url.partition(":")[0]]
    return {name: found for name, found in look(url).items() if name not in OTHERWISE}


def _sqlite(url: str) -> Contents:
    path = url.partition("?")[0].removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("select name from sqlite_master where type = 'table'")]
        return {name: sorted(db.execute(f"select * from {name}")) for name in names}


def _postgres(url: str) -> Contents:
    with psycopg.connect(url) as db:
        db.execute("set search_path = redrive")
        db.execute("select number_changes()")  # by now there, perhaps, and here not yet
        names = [name for (name,) in db.execute("select tablename from pg_tables where schemaname = 'redrive'")]
        found: Contents = {
            name: sorted(db.execute(DELTAS.get(name, f"select * from {name}").encode()), key=repr) for name in names
        }
        return found | {"last number": db.execute("select last_value from item_seq").fetchall()}


def _redis(url: str) -> Contents:
    with redis.Redis.from_url(url) as client:
        return {_name(key): _value(client, key) for key in client.scan_iter()}


def _name(key: bytes) -> str:
    return key.partition(b":")[2].decode()


def _value(client: Any, key: bytes) -> object:
    match client.type(key):
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"set":
            return client.smembers(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case other:
            raise AssertionError(f"{key!r} is a {other!r}")
