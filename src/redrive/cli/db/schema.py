"""`redrive db migrate` and `redrive db sql`: the schema, applied by us or by somebody else's tools."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, urlsplit

import click

from redrive.cli.access import HELP_NAMES, store_option, upkeep_of, verbose_option
from redrive.cli.output import say, write
from redrive.errors import ConfigError
from redrive.stores import script
from redrive.stores.migrate import Migration
from redrive.stores.upkeep import StoreAbsent, Upkeep
from redrive.stores.url import store_from_url

ENGINES = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}
"""Of those that have SQL, by the scheme of the URL."""

MIGRATE = """Bring the schema of the database to what this redrive knows. Opening an app does the same.

\b
Examples:
  redrive db migrate
  redrive db migrate --dry-run
  redrive db migrate --dry-run > pending.sql

Prints the names of what was applied, all in one transaction; with --dry-run the SQL itself, and nothing is applied.
There is no way back but a backup: make one first. On PostgreSQL it makes the schema if there is none. On Redis it
brings the indexes to the layout of this release.
"""


@click.command("migrate", help=MIGRATE, context_settings=HELP_NAMES)
@click.option("--dry-run", is_flag=True, help="Print the SQL and apply nothing.")
@store_option
@verbose_option
def migrate(*, dry_run: bool, store: str) -> None:
    upkeep = upkeep_of(store)
    pending = asyncio.run(upkeep.pending())
    if not pending:
        say(f"nothing to do: {asyncio.run(_why(upkeep))}")
    elif dry_run:
        write(upkeep.script(pending))
    else:
        _apply(upkeep, pending)


async def _why(upkeep: Upkeep) -> str:
    """Redis has no tables to make: there the first app begins with the newest layout."""
    try:
        await upkeep.check_is_there()
    except StoreAbsent as absent:
        return f"{absent.message} yet, and an app makes what it needs"
    return "the schema is up to date"


def _apply(upkeep: Upkeep, pending: tuple[Migration, ...]) -> None:
    applied = asyncio.run(upkeep.migrate())
    for migration in pending:
        if migration.number in applied:
            write(migration.name)
        else:
            say(f"{migration.name} was applied by another process meanwhile")


SQL = """Print all that makes redrive's tables and functions, for tools of your own. Needs no database.

\b
Examples:
  redrive db sql --engine postgres > redrive.sql
  redrive db sql --engine postgres --schema jobs | psql -1 -v ON_ERROR_STOP=1 shop
  redrive db sql --engine postgres --from 1 > upgrade.sql
  redrive db sql --store sqlite:///redrive.db | sqlite3 redrive.db

The engine is that of the store, unless --engine names one. What is printed for PostgreSQL neither begins nor commits a
transaction: run it in one. It also notes down what was applied, so that an app finds nothing to do and needs no right
to create anything. With --from only what comes after that schema.
"""


@click.command("sql", help=SQL, context_settings=HELP_NAMES)
@click.option("--engine", type=click.Choice(["postgres", "sqlite"]), help="Instead of that of the store.")
@click.option("--schema", metavar="NAME", help="PostgreSQL: the schema; otherwise that of the store, or redrive.")
@click.option("--from", "after", metavar="N", type=int, default=0, help="For a database that has schema N.")
@store_option
@verbose_option
def sql(*, engine: str | None, schema: str | None, after: int, store: str) -> None:
    text = _script(engine, schema, after, store)
    if text:
        write(text)
    else:
        say(f"nothing to do: schema {after} is the newest")


def _script(engine: str | None, schema: str | None, after: int, store: str) -> str:
    store_from_url(store)  # which says what is wrong with it
    parts = urlsplit(store)
    own = ENGINES.get(parts.scheme)
    chosen = engine or own
    if chosen == "postgres":
        from redrive.stores.postgres.options import SCHEMA, check_schema

        of_store = dict(parse_qsl(parts.query)).get("schema", SCHEMA) if own == "postgres" else SCHEMA
        name = check_schema(of_store if schema is None else schema, field="--schema")
        return script.postgres(name, script.later("postgres", after))
    if schema is not None:
        raise ConfigError("only PostgreSQL has schemas", field="--schema", hint="say --engine postgres as well")
    if chosen == "sqlite":
        return script.sqlite(script.later("sqlite", after))
    what = f"a {parts.scheme}: store has no tables, so there is no SQL to make them"
    raise ConfigError(what, field="store", hint="name an engine that has: --engine postgres, --engine sqlite")
