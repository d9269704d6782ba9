"""`redrive db …`: the database itself.

It works on the file and not through an app: looking must not migrate, and some files can be looked at but not opened.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from redrive.cli.access import HELP_NAMES, check_is_there, json_option, store_option, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import MISSING, bold, brief, clean, on_terminal, red, say, seconds, tabbed, write, write_json
from redrive.cli.root import LazyGroup
from redrive.core.verbs import Backup, Checkup, Finding
from redrive.errors import BadStoreURL
from redrive.stores.clock import SystemClock
from redrive.stores.migrate import Migration
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.checkup import REPAIRABLE, can_repair
from redrive.stores.sqlite.upkeep import DatabaseStatus, Upkeep
from redrive.stores.url import store_from_url

db = LazyGroup(
    "db",
    {
        "status": "redrive.cli.db:status",
        "check": "redrive.cli.db:check",
        "backup": "redrive.cli.db:backup",
        "migrate": "redrive.cli.db:migrate",
    },
    help="""The database itself: its state, its soundness, copies, and its schema.

\b
Examples:
  redrive db status
  redrive db check
  redrive db backup backup.db
  redrive db migrate --dry-run
""",
)


def _upkeep(url: str) -> Upkeep:
    store = store_from_url(url)
    check_is_there(url)
    if isinstance(store, SqliteStore):
        return store.upkeep()
    raise BadStoreURL("it has no database of its own", field="store", hint="name an sqlite:/// store")


# --- status ----------------------------------------------------------------------------------------------------------

STATUS = """Show the file: versions, schema, sizes. Changes nothing, not even an old schema.

\b
Examples:
  redrive db status
  redrive db status --json | jq '.free_pages * .page_size'

In a pipe each line is a name and a value, separated by a tab. Exit 7 if SQLite cannot read the file; what is known of
it is shown all the same.
"""


@click.command("status", help=STATUS, context_settings=HELP_NAMES)
@json_option
@store_option
@verbose_option
def status(*, as_json: bool, store: str) -> Exit:
    found = asyncio.run(_upkeep(store).status())
    if as_json:
        write_json(_status_object(found))
    elif on_terminal():
        write(bold(clean(found.location)))
        for name, value in _status_words(found):
            write(f"  {name:<11}{clean(value)}")
    else:
        tabbed(_status_lines(found))
    if not found.trouble:
        return Exit.DONE
    say(f"redrive: {found.trouble}")
    return Exit.STORE


def _status_object(found: DatabaseStatus) -> dict[str, Any]:
    return {
        "engine": "sqlite",
        "location": found.location,
        "binding": found.binding,
        "version": found.version,
        "risky": found.risky,
        "schema": found.schema,
        "known": found.known,
        "pending": list(found.pending),
        "changed": list(found.changed),
        "durability": found.durability,
        "file_system": found.file_system,
        "size": found.size,
        "log_size": found.log_size,
        "ballast_size": found.ballast_size,
        "page_size": found.page_size,
        "pages": found.pages,
        "free_pages": found.free_pages,
        "trouble": found.trouble,
    }


def _status_lines(found: DatabaseStatus) -> list[list[str]]:
    return [[name, _plain(value)] for name, value in _status_object(found).items()]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(str(each) for each in value) or MISSING
    return str(value) or MISSING


def _status_words(found: DatabaseStatus) -> list[tuple[str, str]]:
    words = [("engine", f"sqlite {found.version} ({found.binding}){_risk(found)}")]
    if not found.trouble:
        words += [("schema", _schema(found)), ("survives", found.durability)]
    words += [("lies on", found.file_system or "a file system that the system does not name")]
    words += [("database", f"{found.size:,} bytes")]
    if not found.trouble:
        free = found.free_pages * found.page_size
        words += [
            ("pages", f"{found.pages:,} of {found.page_size:,} bytes, with those that are still in the log"),
            ("free", f"{free:,} bytes in {found.free_pages:,} pages, to be used again before the file grows"),
        ]
    words += [("log", f"{found.log_size:,} bytes")]
    return [*words, ("ballast", f"{found.ballast_size:,} bytes" if found.ballast_size else "none")]


def _risk(found: DatabaseStatus) -> str:
    if not found.risky:
        return ""
    fix = 'pip install "redrive[sqlite]" brings one without it'
    return f", which can damage a database that others write; redrive works around it; {fix}"


def _schema(found: DatabaseStatus) -> str:
    if found.schema > found.known:
        return f"{found.schema}, made by a newer redrive; this one knows schemas up to {found.known}: upgrade it"
    if found.changed:
        numbers = ", ".join(str(number) for number in found.changed)
        return f"{found.schema}, but migration {numbers} was applied with other contents than this redrive has"
    if found.pending:
        return f"{found.schema}, to be brought to {found.known} by redrive db migrate or by opening an app"
    return f"{found.schema}, up to date"


# --- check -----------------------------------------------------------------------------------------------------------

CHECK = """Check that the database is whole and agrees with itself.

Exit 10 if something was found, 1 if not all could be looked at.

\b
Examples:
  redrive db check
  redrive db check --quick
  redrive db check --json | jq '.findings[]'
  redrive db check --repair

Looks at every page, and then at what redrive knows to be true: counters equal their items, each dead item has its
letter, each item its payload and the payload its checksum, nothing belongs to an item that is not there. Everything may
run meanwhile. --quick reads neither indexes against tables nor payloads and evidence.

--repair counts anew what is kept beside the items (counters, causes, the last number given), in one write. It touches
no item and removes nothing, and does not write to a file whose pages are damaged.

In a pipe each line starts with its kind, and values are separated by tabs:

\b
  checked   ITEMS
  finding   KIND COUNT REPAIRED TEXT EXAMPLES
  left-out  TEXT
"""


@click.command("check", help=CHECK, context_settings=HELP_NAMES)
@click.option("--quick", is_flag=True, help="Look at less, in a fraction of the time.")
@click.option("--repair", is_flag=True, help="Count anew what is counted wrong.")
@json_option
@store_option
@verbose_option
def check(*, quick: bool, repair: bool, as_json: bool, store: str) -> Exit:
    upkeep = _upkeep(store)
    checkup = asyncio.run(upkeep.check(quick=quick))
    mended = repair and can_repair(checkup)
    if mended:
        asyncio.run(upkeep.repair())
    told = [(finding, mended and finding.kind in REPAIRABLE) for finding in checkup.findings]
    if as_json:
        write_json(_check_object(checkup, told))
    elif on_terminal():
        _show_check(checkup, told)
    else:
        tabbed(_check_lines(checkup, told))
    left = [finding for finding, repaired in told if not repaired]
    if repair and left:
        say("redrive: what is left cannot be repaired (restore a backup, or discard and prune the items it is about)")
    if left:
        return Exit.UNSOUND
    # Not to be taken for good news by whoever reads only the code.
    return Exit.FAILED if checkup.left_out else Exit.DONE


Told = list[tuple[Finding, bool]]
"""What was found, and whether it was repaired."""


def _show_check(checkup: Checkup, told: Told) -> None:
    for finding, repaired in told:
        mark = "repaired" if repaired else finding.kind
        line = clean(f"{mark}: {finding.text}" + (f": {finding.count:,}" if finding.examples else ""))
        write(line if repaired else red(line))
        for example in finding.examples:
            write(f"  {clean(example)}")
        if finding.count > len(finding.examples) > 0:
            write(f"  … and {finding.count - len(finding.examples):,} more")
    for text in checkup.left_out:
        write(clean(f"not looked at: {text}"))
    if not told and not checkup.left_out:
        write(f"sound; {checkup.items:,} items were looked at")


def _check_lines(checkup: Checkup, told: Told) -> list[list[str]]:
    lines = [["checked", str(checkup.items)]]
    for finding, repaired in told:
        examples = ", ".join(finding.examples) or MISSING
        lines.append(["finding", finding.kind, str(finding.count), _plain(repaired), finding.text, examples])
    return lines + [["left-out", text] for text in checkup.left_out]


def _check_object(checkup: Checkup, told: Told) -> dict[str, Any]:
    return {
        "sound": all(repaired for _, repaired in told),
        "items": checkup.items,
        "findings": [
            {
                "kind": finding.kind,
                "text": finding.text,
                "count": finding.count,
                "examples": list(finding.examples),
                "repaired": repaired,
            }
            for finding, repaired in told
        ],
        "left_out": list(checkup.left_out),
    }


# --- backup ----------------------------------------------------------------------------------------------------------

BACKUP = """Copy the database to FILE while everything runs.

\b
Examples:
  redrive db backup backup.db
  redrive db backup /mnt/other-disk/redrive-$(date +%F).db
  redrive db backup backup.db --force

The copy has all that was committed when it began, in one file. It is checked and on the disk before it gets its name.
Items that run at that time run again from the copy. In a pipe the columns are FILE BYTES SECONDS, separated by tabs.
"""


@click.command("backup", help=BACKUP, context_settings=HELP_NAMES)
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@json_option
@store_option
@verbose_option
def backup(*, file: str, force: bool, as_json: bool, store: str) -> None:
    made = asyncio.run(_upkeep(store).backup(file, force=force))
    if as_json:
        write_json({"file": made.path, "size": made.size, "took": seconds(made.took)})
    elif on_terminal():
        write(_copied(file, made))
    else:
        tabbed([[made.path, str(made.size), str(seconds(made.took))]])


def _copied(file: str, made: Backup) -> str:
    return clean(f"{file}: {made.size:,} bytes, copied and checked in {brief(made.took)}")


# --- migrate ---------------------------------------------------------------------------------------------------------

MIGRATE = """Bring the schema of the database to what this redrive knows. Opening an app does the same.

\b
Examples:
  redrive db migrate
  redrive db migrate --dry-run
  redrive db migrate --dry-run > pending.sql

Prints the names of what was applied, all in one transaction; with --dry-run the SQL itself, and nothing is applied.
There is no way back but a backup: make one first.
"""


@click.command("migrate", help=MIGRATE, context_settings=HELP_NAMES)
@click.option("--dry-run", is_flag=True, help="Print the SQL and apply nothing.")
@store_option
@verbose_option
def migrate(*, dry_run: bool, store: str) -> None:
    upkeep = _upkeep(store)
    pending = asyncio.run(upkeep.pending())
    if not pending:
        say("nothing to do: the schema is up to date")
    elif dry_run:
        for migration in pending:
            write(f"-- {migration.name}")
            write(migration.text.rstrip())
    else:
        _apply(upkeep, pending)


def _apply(upkeep: Upkeep, pending: tuple[Migration, ...]) -> None:
    applied = asyncio.run(upkeep.migrate(SystemClock().now()))
    for migration in pending:
        if migration.number in applied:
            write(migration.name)
        else:
            say(f"{migration.name} was applied by another process meanwhile")
