"""One connection, with our ways of sending values and of giving up on an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection, waiting
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper

from redrive.stores.postgres.arrays import ELEMENTS, Array

Row = tuple[Any, ...]


class Wire(AsyncConnection[Row]):
    """`pid`: whose it is. `generation`: the pool's when it was made. `idle_since`: when it was last given back."""

    pid = 0
    generation = 0
    idle_since = 0.0

    async def wait(self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None) -> Any:
        """A wait that is cut off ends at once: psycopg would ask the server to cancel and wait for that as well.

        Nobody uses the connection again, and the server has its own limit for the statement.
        """
        given = {} if timeout is None else {"timeout": timeout}
        return await waiting.wait_async(gen, self.pgconn.socket, interval, **given)

    def forget(self) -> None:
        """In a forked child: psycopg does not miss the goodbye of a connection that is in somebody's pool."""
        self._pool = None

    async def rows(self, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        cursor = self.cursor(binary=True)
        await cursor.execute(statement.encode(), params or None)
        return await cursor.fetchall() if cursor.description is not None else []


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> Buffer | None:
        return obj


def teach(connection: Wire) -> None:
    """Every number is a bigint, whatever its size: one statement has one plan."""
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    for kind, (_, oid) in ELEMENTS.items():
        connection.adapters.register_dumper(kind, type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": oid}))
