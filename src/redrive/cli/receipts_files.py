"""`redrive receipts export` and `import`: dead receipts as the file `receipts.json`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redrive.cli.access import (
    HELP_NAMES,
    dry_run_option,
    json_option,
    reason_option,
    store_option,
    verbose_option,
    visit,
)
from redrive.cli.bulk import DONE_ALL_THE_SAME
from redrive.cli.exits import Exit
from redrive.cli.output import Unwritten, clean, on_terminal, raw_output, say, write, write_json
from redrive.cli.receipts_target import (
    FAULTS,
    check_there,
    chosen,
    queue_option,
    say_faults,
    take_in,
    tenant_option,
)
from redrive.errors import ConfigError
from redrive.office.letters import check_reason
from redrive.stores.upkeep import StoreAbsent

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.receipts.dead_letters import Imported
    from redrive.receipts.receipts_json import Contents, Entry
    from redrive.receipts.settings import ReceiptSettings

ABOUT_EXPORT = """Write the dead receipts to a file, or to stdout: a JSON array of receipt, failed_at and attempts.

\b
Examples:
  redrive receipts export receipts.json
  redrive receipts export - | jq length

Whole or not at all. A file that exists is left alone without --force. The receipts stay where they are, and are written
as they are, with any secrets, and with the tenant_id if they have one. To take along errors and history as well:
redrive letters export.
"""
ABOUT_IMPORT = """Take in a receipts.json: each entry becomes a dead letter that `receipts recover` delivers.

\b
Examples:
  redrive receipts import /var/lib/cognigate/dlq/receipts.json
  redrive receipts import receipts.json --tenant shop --dry-run

Entries that are in the store, or were, are left alone: a second import adds nothing. The file is not changed. Of a
damaged file every entry is imported that can be read and sent; the others are reported by entry and line, and the file
is copied. Unknown fields are ignored. --tenant is for receipts without a tenant_id. In a pipe stdout has the ids that
were imported. Exit 9 if some entries could not be imported, 2 if none could.
"""


@click.command("export", help=ABOUT_EXPORT, context_settings=HELP_NAMES)
@click.argument("file", metavar="[FILE]", default="-")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@queue_option
@store_option
@verbose_option
def export(*, file: str, force: bool, queue: str | None, store: str) -> None:
    settings = chosen(queue=queue)
    path = Path(file).absolute()

    async def read(app: Redrive) -> list[Entry]:
        from redrive.receipts.dead_receipts import dead_receipts

        await check_there(app, queue)
        await take_in(app, settings)
        return [each.entry for each in await dead_receipts(app, settings.queue)]

    async def copy(app: Redrive) -> int:
        from redrive.receipts import receipts_json

        entries = await read(app)
        await receipts_json.write(path, entries, force=force)
        return len(entries)

    if file != "-":
        count = visit(store, copy)
    else:
        from redrive.receipts import receipts_json

        found = visit(store, read)
        with raw_output() as out:
            out.write(receipts_json.dump(found))
        count = len(found)
    say(f"exported {count:,}; receipts are as they are, with any secrets")


@click.command("import", help=ABOUT_IMPORT, context_settings=HELP_NAMES)
@click.argument("file", metavar="FILE | -")
@reason_option(default="imported")
@dry_run_option("Look at all of them, say what would be taken in, and take in nothing.")
@queue_option
@tenant_option
@json_option
@store_option
@verbose_option
def import_receipts(
    *, file: str, reason: str, dry_run: bool, queue: str | None, tenant: str | None, as_json: bool, store: str
) -> int:
    why = check_reason(reason)
    settings = chosen(queue=queue, tenant=tenant)
    path = None if file == "-" else Path(file).absolute()
    contents = _contents(path, file)
    if not contents.entries and contents.faults:
        for fault in contents.faults[:FAULTS]:
            say(str(fault))
        raise ConfigError(f"no entry of {file} can be taken in; nothing was", field="FILE", hint=SHAPE)

    async def take(app: Redrive) -> Imported:
        from redrive.receipts.dead_letters import DeadLetterQueue

        letters = DeadLetterQueue.of(app, queue=settings.queue, tenant_id=settings.tenant)
        return await letters.import_(path, contents, reason=why, dry_run=dry_run)

    try:
        done = visit(store, take, make=not dry_run, acts=not dry_run)
    except StoreAbsent as absent:  # only where it is not to be made
        say(f"{absent.message}: an import would make it")
        done = _into_nothing(contents, settings)
    return _report(done, as_json=as_json, dry_run=dry_run)


def _into_nothing(contents: Contents, settings: ReceiptSettings) -> Imported:
    """The result for an empty store."""
    import asyncio

    from redrive.receipts.dead_letters import DeadLetterQueue

    async def look() -> Imported:
        async with DeadLetterQueue("memory:", queue=settings.queue, tenant_id=settings.tenant) as letters:
            return await letters.import_(None, contents, reason="a look", dry_run=True)

    return asyncio.run(look())


SHAPE = 'an array of objects such as {"receipt": {…}, "failed_at": "2024-01-15T10:30:45Z", "attempts": 5}'


def _contents(path: Path | None, file: str) -> Contents:
    from redrive.receipts import receipts_json

    try:
        data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", field="FILE", hint=SHAPE) from None
    return receipts_json.parse(data)


def _report(done: Imported, *, as_json: bool, dry_run: bool) -> int:
    say_faults(done)
    there = f", {done.already:,} were there already" if done.already else ""
    bad = f", {len(done.faults):,} could not be taken in" if done.faults else ""
    summary = f"{'would take in' if dry_run else 'took in'} {len(done.added):,}{there}{bad}"
    try:
        if as_json:
            faults = [{"entry": each.entry, "line": each.line, "text": each.text} for each in done.faults]
            aside = None if done.aside is None else str(done.aside)
            result = {"imported": list(done.added), "already": done.already, "faults": faults, "aside": aside}
            write_json({"dry_run": dry_run, **result})
        elif not on_terminal():
            for one in done.added:
                write(clean(one))
    except Unwritten as error:
        raise error if dry_run else Unwritten(f"{summary}, but {error.message}", hint=DONE_ALL_THE_SAME) from None
    if not as_json:
        say(summary)
    return Exit.PARTLY if done.faults else Exit.DONE
