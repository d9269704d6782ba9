"""`put` in the caller's own transaction, on whatever connection the caller has.

One call of the function `put` on it, and nothing else: no commit, no settings, no notification, which would be the
caller's to pay for. What it adds is there when the caller commits; workers find it by looking, as they always do.
Each driver has its own way of writing places for values; which one a connection is of is told by its class, so that no
driver is imported that the caller does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redrive.errors import ConfigError, StoreUnavailable
from redrive.stores.aside import aside, through
from redrive.stores.joining import ancestry, name_of, unwrapped

Rows = Sequence[Sequence[Any]]

_TYPES = ("bigint", "text[]", "text[]", "bigint[]", "bigint[]", "smallint[]", "bytea[]")
_ACCEPTED = "a connection of psycopg, psycopg2, asyncpg, SQLAlchemy or Django"


async def put_within(within: object, schema: str, values: Sequence[Any]) -> list[int]:
    """The places of those that were there already. `values`: what the function takes, in plain lists."""
    try:
        rows = await through(_asked(within, schema, values))
    except (ConfigError, StoreUnavailable):
        raise
    except Exception as error:
        raise _told(error, schema) from error
    return [row[0] for row in rows]


async def _asked(within: object, schema: str, values: Sequence[Any]) -> Rows:
    connection = unwrapped(within)
    names = ancestry(connection)
    if "psycopg.AsyncConnection" in names:
        return await _await_cursor(connection, _format(schema), values)
    if "psycopg.Connection" in names:
        return await aside(lambda: _cursor(connection, _format(schema), values))
    if "psycopg2.connection" in names:
        return await aside(lambda: _cursor(connection, _format(schema), _for_psycopg2(values)))
    if names & {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}:
        return list(await connection.fetch(_dollars(schema), *values))
    if "sqlalchemy.AsyncConnection" in names:
        return list((await connection.exec_driver_sql(*_driver_call(connection, schema, values))).all())
    if "sqlalchemy.Connection" in names:
        return await aside(lambda: list(connection.exec_driver_sql(*_driver_call(connection, schema, values)).all()))
    if "sqlalchemy.AsyncSession" in names:
        return await _asked(await connection.connection(), schema, values)
    if "sqlalchemy.Session" in names:
        return await _asked(await aside(connection.connection), schema, values)
    raise ConfigError(f"a {name_of(within)} is not a connection that can be joined", field="within", hint=_ACCEPTED)


# --- each driver's way ---


def _statement(schema: str, mark: Callable[[int], str]) -> str:
    places = ", ".join(f"{mark(number)}::{kind}" for number, kind in enumerate(_TYPES, 1))
    return f"select place from {schema}.put({places})"  # noqa: S608 - the schema is quoted, the rest is ours


def _format(schema: str) -> str:
    return _statement(schema.replace("%", "%%"), lambda _: "%s")


def _dollars(schema: str) -> str:
    return _statement(schema, lambda number: f"${number}")


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
    from psycopg2 import Binary

    *plain, bodies = values
    return [*plain, [Binary(body) for body in bodies]]


def _driver_call(connection: Any, schema: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """As SQLAlchemy's driver wants it. Through SQLAlchemy, which begins its transactions at the first statement."""
    driver = connection.dialect.driver
    if connection.dialect.name != "postgresql":
        hint = "use an engine of the database that the store is in"
        raise ConfigError(f"it is a connection to {connection.dialect.name}", field="within", hint=hint)
    if driver == "asyncpg":
        return _dollars(schema), tuple(values)
    if driver in {"psycopg", "psycopg_async"}:
        return _format(schema), tuple(values)
    if driver == "psycopg2":
        return _format(schema), tuple(_for_psycopg2(values))
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
