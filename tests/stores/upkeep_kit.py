"""A database with something in every table, and ways to do it harm. Only while nobody has it open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from redrive.core.acts import Act, Archive
from redrive.core.decide import Charge, ToDead, ToDone, ToReady
from redrive.core.item import Attempt, Ending, Failure, Item
from redrive.core.select import Ids
from redrive.core.verbs import Settlement
from redrive.stores import migrate
from redrive.stores.base import Store
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.binding import BindingName
from redrive.stores.sqlite.upkeep import SqliteUpkeep
from redrive.stores.statements import load
from tests.stores.sqlite_kit import asking, new

BY = Act("ops", "why not", "r-1")


def upkeep(path: Path, binding: BindingName = "stdlib") -> SqliteUpkeep:
    return SqliteUpkeep(str(path), "power-loss", 2_000, binding, "refuse")


def died(item: Item, cause: str = "c1") -> Settlement:
    failure = Failure("ValueError", "no such user", "data", "default", cause)
    attempt = Attempt(item.deliveries, item.attempt, "w", 0, 1, Ending.FAILED, failure)
    return Settlement(item.id, item.deliveries, ToDead("max_attempts", Charge.ERROR, failure), attempt)


async def fill(store: Store) -> None:
    """Six items: ready, leased, done with a result, tried once, an open letter, an archived one."""
    await store.put([new(name, payload=b'{"to": "somebody"}') for name in ("a", "b", "c", "d", "e", "f")])
    items = {item.id: item for item in (await store.lease(asking(5))).items}
    tried = Attempt(1, 1, "w", 0, 1, Ending.FAILED, Failure("E", "t", "data", "default", "c"))
    await store.settle(
        [
            Settlement("c", 1, ToDone(b'"fine"')),
            Settlement("d", 1, ToReady(60_000, Charge.ERROR), tried),
            died(items["b"]),
            died(items["e"], "c2"),
        ]
    )
    await store.amend(Ids(("e",)), Archive(), BY)


async def filled(path: Path, binding: BindingName = "stdlib") -> Path:
    store = await SqliteStore(path, binding=binding).open()
    await fill(store)
    await store.close()
    return path


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def spoil(path: Path, old: bytes, wanted: bytes) -> None:
    """In the file itself, behind SQLite's back."""
    data = path.read_bytes()
    assert len(old) == len(wanted)
    assert old in data
    path.write_bytes(data.replace(old, wanted))


def of_first_schema(path: Path) -> Path:
    """An empty database of schema 1, whatever came after it."""
    sql, first = load("sqlite", "open"), migrate.known("sqlite")[0]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute(sql["create_migration"])
        for statement in first.statements():
            connection.execute(statement)
        connection.execute(sql["record"], (first.number, first.checksum, 0))
    return path
