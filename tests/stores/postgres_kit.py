"""What the tests of the PostgreSQL store share: letters, and a look and a hand behind the store's back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg import AsyncConnection

from redrive.core.acts import Act
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Attempt, Ending, Failure, Item
from redrive.core.select import Match
from redrive.core.verbs import Settlement
from redrive.stores.base import Store
from tests.stores.sqlite_kit import asking, new

Row = tuple[Any, ...]


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


@asynccontextmanager
async def behind(url: str) -> AsyncIterator[AsyncConnection[Row]]:
    """A connection of somebody else, who finds the tables by their names. Commits by itself until it begins."""
    plain = urlsplit(url)._replace(query="").geturl()
    options = f"-c search_path={schema_of(url)} -c lock_timeout=10s -c statement_timeout=30s"
    async with await psycopg.AsyncConnection.connect(plain, autocommit=True, options=options) as connection:
        yield connection


async def execute(url: str, *statements: str) -> None:
    async with behind(url) as connection:
        for statement in statements:
            await connection.execute(statement.encode())


async def rows(url: str, statement: str, values: Sequence[Any] = ()) -> list[Row]:
    async with behind(url) as connection:
        return await (await connection.execute(statement.encode(), values or None)).fetchall()


async def somebody_waits(url: str, connection: AsyncConnection[Row]) -> None:
    """Until another session waits for a lock that `connection` holds."""
    async with behind(url) as watching, asyncio.timeout(20):
        while True:
            asked = await watching.execute(
                b"select 1 from pg_stat_activity where %s = any(pg_blocking_pids(pid))", (connection.info.backend_pid,)
            )
            if await asked.fetchone() is not None:
                return
            await asyncio.sleep(0.005)  # noqa: TID251 - nobody tells when a server's session begins to wait


# --- letters ----------------------------------------------------------------------------------------------------------

DEAD = Match("state", "=", "dead")
OPEN = Match("disposition", "=", "open")


def act(request_id: str = "r-1") -> Act:
    return Act("ada", "why not", request_id)


def died(item: Item, why: Failure) -> Settlement:
    attempt = Attempt(item.deliveries, item.attempt, "w", 0, 1, Ending.FAILED, why)
    return Settlement(item.id, item.deliveries, ToDead("max_attempts", Charge.ERROR, why), attempt)


async def letters(store: Store, *failures: Failure) -> list[str]:
    """One for each failure, in the order of their ids."""
    ids = [f"i{number:03}" for number in range(len(failures))]
    await store.put([new(item_id) for item_id in ids])
    items = (await store.lease(asking(len(ids)))).items
    await store.settle([died(item, why) for item, why in zip(items, failures, strict=True)])
    return ids


def failure(error: str = "E", category: str = "data", cause: str = "c1", rule: str = "default") -> Failure:
    return Failure(error, "it failed", category, rule, cause)
