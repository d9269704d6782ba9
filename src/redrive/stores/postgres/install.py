"""What a database must have before its first use: the tables and the functions, of this release and no later one."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import psycopg

from redrive.errors import ConfigError, StoreForbidden
from redrive.stores import migrate
from redrive.stores.postgres.faults import NO_SETTINGS, nothing_there
from redrive.stores.statements import load

if TYPE_CHECKING:
    from redrive.stores.postgres.options import Options
    from redrive.stores.postgres.wire import Wire

OLDEST = 13
PATIENCE = 60
"""Seconds for the migrations, and for somebody else's that are under way."""

FUNCTIONS = (
    ("clock", "function"),
    ("get", "tags_of"),
    ("families", "families_of"),
    ("families", "settings_for"),
    ("families", "running_of"),
    ("families", "fill_of"),
    ("families", "guard"),
    ("families", "lower"),
    ("families", "lower_all"),
    ("families", "count_member"),
    ("families", "untrigger"),
    ("families", "trigger"),
    ("families", "declare"),
    ("families", "turns"),
    ("families", "closed"),
    ("families", "look_again"),
    ("families", "next_look"),
    ("families", "looked_at"),
    ("families", "lease"),
    ("bonds", "take_keys"),
    ("bonds", "free_keys"),
    ("bonds", "bucket"),
    ("bonds", "parked_behind"),
    ("bonds", "lock_lines"),
    ("bonds", "die"),
    ("bonds", "leave_lines"),
    ("bonds", "move_lines"),
    ("bonds", "rehold"),
    ("bonds", "give_back"),
    ("bonds", "untie"),
    ("bonds", "end_heads"),
    ("put", "crowded"),
    ("put", "in_clear"),
    ("put", "await_all"),
    ("put", "enter_bound"),
    ("put", "put_bound"),
    ("put", "function"),
    ("lease", "labelled"),
    ("lease", "payload_now"),
    ("lease", "terms_now"),
    ("lease", "levels"),
    ("lease", "kinds_in"),
    ("lease", "doors"),
    ("lease", "member_doors"),
    ("lease", "room"),
    ("lease", "spend"),
    ("lanes", "choose"),
    ("lanes", "set_aside"),
    ("lanes", "give"),
    ("lanes", "give_chosen"),
    ("lanes", "give_suspect"),
    ("lanes", "give_one"),
    ("lanes", "suspect_waits"),
    ("lease", "function"),
    ("settle", "keep_from_routes"),
    ("settle", "follow_up"),
    ("settle", "keep_evidence"),
    ("settle", "function"),
    ("settle", "refuse_clear"),
    ("amend", "lock_lines_into"),
    ("amend", "unpark"),
    ("amend", "give_way"),
    ("amend", "rejoin"),
    ("amend", "let_go"),
    ("recall", "put_back"),
    ("configure", "free_aside"),
    ("tally", "earliest"),
    ("tally", "opens_at"),
    ("extend", "function"),
    ("reclaim", "function"),
    ("changes", "number"),
    ("changes", "function"),
    ("fold", "function"),
    ("beat", "function"),
    ("elect", "function"),
)
"""In the order in which they are made: a function of SQL needs what it calls."""

_STRANGE = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
    psycopg.errors.DuplicateFunction,
    psycopg.errors.InvalidFunctionDefinition,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.CannotCoerce,
    psycopg.errors.InvalidTextRepresentation,
)
"""What tables and functions of somebody else make of ours."""

_log = logging.getLogger("redrive.stores")

Durability = Literal["power-loss", "process-crash", "none"]


class Facts(NamedTuple):
    """What the server says about itself and about our schema."""

    number: int
    version: str
    in_recovery: bool
    read_only: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    has_tables: bool
    user: str
    database: str
    has_schema: bool
    data_sync_retry: str
    isolation: str = "read committed"
    encoding: str = "UTF8"
    settings: str = ""

    @property
    def durability(self) -> Durability:
        """What an accepted item survives.

        Without fsync the system's cache holds what a killed server wrote, and loses it with the power; without full
        pages a page may be torn then; and a failed fsync that is retried may be told as done although it was not. With
        synchronous_commit off the last commits are in the server's own memory only, and die with it: that is no promise
        at all. What a replica gets, and when, is between the servers.
        """
        if self.synchronous_commit == "off":
            return "none"
        synced = self.fsync == self.full_page_writes == "on" and self.data_sync_retry == "off"
        return "power-loss" if synced else "process-crash"


class Installed(NamedTuple):
    facts: Facts
    schema: int

    @property
    def library(self) -> str:
        return f"PostgreSQL {self.facts.version.split()[0]} (psycopg {psycopg.__version__})"


def script(schema: str, pending: tuple[migrate.Migration, ...]) -> list[str]:
    """The statements that bring a schema to this release, as text to be run in one transaction."""
    tables = [migration.text.replace("{schema}", schema) for migration in pending]
    return [*tables, *functions(schema)]


def functions(schema: str) -> list[str]:
    return [load("postgres", verb)[name].replace("{schema}", schema) for verb, name in FUNCTIONS]


async def install(wire: Wire, options: Options, *, make: bool = True) -> Installed:
    """An up-to-date schema is only looked at: no lock, no write, and no right to change it needed.

    `make`: also where there is nothing of redrive's yet.
    """
    facts = await _facts(wire, options, make=make)
    _check_ground(options, facts)
    applied = await _applied(wire, options) if facts.has_tables else {}
    pending = migrate.pending("postgres", applied, options.location)
    if pending:
        await _migrate(wire, options, facts)
    else:
        await _check_rights(wire, options, facts)
    if facts.durability != "power-loss":
        _log.warning(
            "%s: what is accepted survives %s (fsync=%s, full_page_writes=%s, synchronous_commit=%s)",
            options.location,
            "no crash of the server" if facts.durability == "none" else "a crash of the server, but no loss of power",
            facts.fsync,
            facts.full_page_writes,
            facts.synchronous_commit,
        )
    return Installed(facts, max(migration.number for migration in migrate.known("postgres")))


def _sql(options: Options, name: str) -> str:
    return load("postgres", "open")[name].replace("{schema}", options.quoted)


async def _facts(wire: Wire, options: Options, *, make: bool) -> Facts:
    major = wire.info.server_version // 10_000
    if major < OLDEST:
        raise ConfigError(
            f"{options.location} is PostgreSQL {major}, which is too old",
            field="store",
            hint=f"PostgreSQL {OLDEST} or newer is needed",
        )
    facts = Facts(*(await wire.rows(_sql(options, "facts")))[0])
    if not make and not facts.has_tables:
        raise nothing_there(options)
    if facts.in_recovery or facts.read_only == "on":
        what = "is a read-only replica" if facts.in_recovery else "is read-only (default_transaction_read_only is on)"
        hint = "use the address of the primary server, or add target_session_attrs=read-write to the URL"
        if not facts.in_recovery:
            hint = f'alter role "{facts.user}" set default_transaction_read_only = off; if this is the primary server'
        raise StoreForbidden(f"{options.location} {what}", hint=hint)
    return facts


def _check_ground(options: Options, facts: Facts) -> None:
    """What the verbs stand on, and what a server, a pooler or a URL may have set otherwise."""
    if options.notify and facts.settings != "taken":
        raise ConfigError(
            f"{options.location} forgets the settings of a connection, as a pooler does that ignores `options`",
            field="store",
            hint=NO_SETTINGS,
        )
    if facts.isolation != "read committed":
        raise ConfigError(
            f"{options.location}: default_transaction_isolation is {facts.isolation} for the user {facts.user}",
            field="store",
            hint=f"alter role \"{facts.user}\" set default_transaction_isolation = 'read committed'; or take another",
        )
    # One that takes only some letters would refuse the evidence of a failure, when it is too late to do without.
    if facts.encoding not in {"UTF8", "SQL_ASCII"}:
        raise ConfigError(
            f"{options.location}: the encoding of the database is {facts.encoding}, which cannot hold every text",
            field="store",
            hint="create database … encoding 'UTF8' template template0;",
        )


async def _applied(wire: Wire, options: Options) -> dict[int, str]:
    try:
        rows = await wire.rows(_sql(options, "applied"))
    except _STRANGE as error:
        raise _occupied(options, error) from None
    return {number: checksum for number, checksum in rows}  # noqa: C416 - rows are tuples of any length to mypy


async def _migrate(wire: Wire, options: Options, facts: Facts) -> None:
    said = partial(_sql, options)
    try:
        await wire.rows("begin")
        await wire.rows(said("patience"))
        await wire.rows(said("lock"))
        # Somebody else may have done it while we waited for the lock.
        facts = Facts(*(await wire.rows(said("facts")))[0])
        if not facts.has_schema:
            await wire.rows(said("create_schema"))
        await wire.rows(said("create_migration"))
        pending = migrate.pending("postgres", await _applied(wire, options), options.location)
        if pending:
            for text in script(options.quoted, pending):
                await wire.execute(text.encode())
            for migration in pending:
                await wire.rows(said("record"), (migration.number, migration.checksum))
        await wire.rows("commit")
    except psycopg.errors.InsufficientPrivilege as error:
        raise _forbidden(options, facts, error) from None
    except _STRANGE as error:
        raise _occupied(options, error) from None


def _occupied(options: Options, error: psycopg.Error) -> ConfigError:
    said = error.diag.message_primary or "a name is taken"
    return ConfigError(
        f"{options.location}: the schema {options.quoted} holds something else under a name of ours: {said}",
        field="schema",
        hint="give redrive a schema of its own, as schema=redrive in the store's URL",
    )


def _forbidden(options: Options, facts: Facts, error: psycopg.Error) -> StoreForbidden:
    said = error.diag.message_primary or "a right is missing"
    if not facts.has_schema:
        hint = f'grant create on database "{facts.database}" to "{facts.user}";'
    else:
        hint = f'alter schema {options.quoted} owner to "{facts.user}"; or let its owner open the store once'
    return StoreForbidden(f"{options.location}: the tables cannot be made: {said}", hint=hint)


async def _check_rights(wire: Wire, options: Options, facts: Facts) -> None:
    rows = await wire.rows(_sql(options, "lacking"))
    if rows:
        to = f'in schema {options.quoted} to "{facts.user}"'
        raise StoreForbidden(
            f"{options.location}: the user {facts.user} may not use {', '.join([name for (name,) in rows][:3])}",
            hint=(
                f"grant select, insert, update, delete on all tables {to}; "
                f"grant usage on all sequences {to}; grant execute on all functions {to};"
            ),
        )
