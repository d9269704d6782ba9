"""What the tests of the SQLite store share."""

import sqlite3
from collections.abc import Awaitable, Callable

from redrive.core.item import NewItem
from redrive.core.verbs import LeaseRequest, Want
from redrive.errors import NotFound
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.writer import Writer

Open = Callable[..., Awaitable[SqliteStore]]


def new(item_id: str, queue: str = "q", payload: bytes = b"{}") -> NewItem:
    return NewItem(item_id, queue, payload)


def asking(limit: int = 10, queue: str = "q", nonce: str = "n") -> LeaseRequest:
    return LeaseRequest("w", (Want(queue, limit, 30_000, 3),), nonce)


def lane(store: SqliteStore) -> Writer:
    session = store._session  # noqa: SLF001 - the tests of the writer need it
    assert session is not None
    return session.writer


async def exists(store: SqliteStore, item_id: str) -> bool:
    try:
        await store.get(item_id)
    except NotFound:
        return False
    return True


def full() -> sqlite3.OperationalError:
    """As SQLite says it."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
    return error
