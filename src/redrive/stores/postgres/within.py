"""`put` in the caller's own transaction, on whatever connection the caller has.

A call of the function `put` on it, and no more than a look: no commit, no settings, no notification, which would be the
caller's to pay for. What it adds is there when the caller commits; workers find it by looking, as they always do.
Each driver has its own way of writing places for values; which one a connection is of is told by its class, so that no
driver is imported that the caller does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores.aside import aside, through
from redrive.stores.joining import ancestry, name_of, unwrapped

Rows = Sequence[Sequence[Any]]


class _Query(NamedTuple):
    """A statement around its values, each of a type."""

    head: str
    types: tuple[str, ...]
    tail: str = ""


_PUT = _Query(
    "select place, note, other, fill, capacity from {schema}.put(",
    (
        *("bigint", "text[]", "text[]", "bigint[]", "bigint[]", "smallint[]", "bytea[]", "bigint[]", "smallint[]"),
        *("integer[]", "text[]", "text[]", "text[]", "text[]", "bigint[]", "smallint[]", "bytea[]"),
        *("integer[]", "text[]", "text[]", "text[]"),
    ),
    ", true)",
)
_THERE = _Query("select queue, crc, packing, body from {schema}.item where id = ", ("text",))
_ACCEPTED = "a connection of psycopg, psycopg2, asyncpg, SQLAlchemy or Django"


async def put_within(within: object, schema: str, values: Sequence[Any]) -> Rows:
    """What the function says of those that were not added. `values`: what it takes, in plain lists."""
    return await _ask(within, _PUT, schema, values)


async def there_within(within: object, schema: str, item_id: str) -> Sequence[Any] | None:
    """Queue, crc, packing and body of an item as the caller's transaction sees it, which may have put it itself."""
    rows = await _ask(within, _THERE, schema, [item_id])
    return rows[0] if rows else None


async def _ask(within: object, query: _Query, schema: str, values: Sequence[Any]) -> Rows:
    try:
        return await through(_asked(within, query._replace(head=query.head.replace("{schema}", schema)), values))
    except (ConfigError, StoreUnavailable):
        raise
    except Exception as error:
        raise _told(error, schema) from error


async def _asked(within: object, query: _Query, values: Sequence[Any]) -> Rows:
    connection = unwrapped(within)
    names = ancestry(connection)
    if "psycopg.AsyncConnection" in names:
        return await _await_cursor(connection, _format(query), values)
    if "psycopg.Connection" in names:
        return await aside(lambda: _cursor(connection, _format(query), values))
    if "psycopg2.connection" in names:
        return await aside(lambda: _cursor(connection, _format(query), _for_psycopg2(values)))
    if names & {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}:
        return list(await connection.fetch(_dollars(query), *values))
    if "sqlalchemy.AsyncConnection" in names:
        return list((await connection.exec_driver_sql(*_driver_call(connection, query, values))).all())
    if "sqlalchemy.Connection" in names:
        return await aside(lambda: list(connection.exec_driver_sql(*_driver_call(connection, query, values)).all()))
    if "sqlalchemy.AsyncSession" in names:
        return await _asked(await connection.connection(), query, values)
    if "sqlalchemy.Session" in names:
        return await _asked(await aside(connection.connection), query, values)
    raise ConfigError(f"a {name_of(within)} is not a connection that can be joined", field="within", hint=_ACCEPTED)


# --- each driver's way ---


def _statement(query: _Query, mark: Callable[[int], str]) -> str:
    places = ", ".join(f"{mark(number)}::{kind}" for number, kind in enumerate(query.types, 1))
    return f"{query.head}{places}{query.tail}"


def _format(query: _Query) -> str:
    return _statement(query, lambda _: "%s")


def _dollars(query: _Query) -> str:
    return _statement(query, lambda number: f"${number}")


async def _await_cursor(connection: Any, statement: str, values: Sequence[Any]) -> Rows:
    # A plain cursor: the connection's own may be one that gives dicts, or lives on the server.
    import psycopg

    async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        await cursor.execute(statement.encode(), values)
        return await cursor.fetchall()


def _cursor(connection: Any, statement: str, values: Sequence[Any]) -> Rows:
    if "psycopg.Connection" in ancestry(connection):
        import psycopg

        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            return cursor.execute(statement.encode(), values).fetchall()
    from psycopg2.extensions import cursor as plain

    with connection.cursor(cursor_factory=plain) as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def _for_psycopg2(values: Sequence[Any]) -> list[Any]:
    """Which takes a list of bytes for something else."""
    from psycopg2 import Binary

    def wrapped(value: Any) -> Any:
        return (
            [Binary(each) if isinstance(each, bytes) else each for each in value] if isinstance(value, list) else value
        )

    return [wrapped(value) for value in values]


def _driver_call(connection: Any, query: _Query, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """As SQLAlchemy's driver wants it. Through SQLAlchemy, which begins its transactions at the first statement."""
    driver = connection.dialect.driver
    if connection.dialect.name != "postgresql":
        hint = "use an engine of the database that the store is in"
        raise ConfigError(f"it is a connection to {connection.dialect.name}", field="within", hint=hint)
    if driver == "asyncpg":
        return _dollars(query), tuple(values)
    if driver in {"psycopg", "psycopg_async"}:
        return _format(query), tuple(values)
    if driver == "psycopg2":
        return _format(query), tuple(_for_psycopg2(values))
    raise ConfigError(f"SQLAlchemy's driver {driver} cannot be joined", field="within", hint=_ACCEPTED)


# --- what went wrong ---


def _told(error: Exception, schema: str) -> Exception:
    """In the caller's transaction, which is the caller's to roll back."""
    code = _sqlstate(error)
    if code in {"42883", "3F000", "42P01"}:
        hint = "give a connection to the database of the store, with its schema"
        return ConfigError(f"its database has no redrive in the schema {schema}", field="within", hint=hint)
    if code == "42501":
        hint = f"grant usage on schema {schema} and rights on its tables and sequences to the role of your connection"
        return ConfigError(f"its role may not use the schema {schema}", field="within", hint=hint)
    what = (str(error).strip() or type(error).__name__).splitlines()[0]
    return StoreUnavailable(f"nothing was added, your transaction failed: {what}", hint="roll back and begin again")


def _sqlstate(error: BaseException | None) -> str | None:
    """By psycopg and asyncpg called sqlstate, by psycopg2 pgcode; SQLAlchemy wraps what the driver raised."""
    while error is not None:
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if isinstance(code, str):
            return code
        error = getattr(error, "orig", None) or error.__cause__
    return None
