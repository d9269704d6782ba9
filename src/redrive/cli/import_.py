"""`redrive letters import`: take in what `letters export` wrote."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

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
from redrive.cli.asking import Progress
from redrive.cli.bulk import DONE_ALL_THE_SAME
from redrive.cli.exits import Exit
from redrive.cli.interrupts import Interrupts
from redrive.cli.output import Unwritten, clean, on_terminal, say, write, write_json
from redrive.core.item import Instant
from redrive.core.verbs import PutResult
from redrive.engine.ids import new_id
from redrive.errors import BadImport, ConfigError
from redrive.office.letters import check_reason
from redrive.office.records import Record, record_from
from redrive.office.transfer import Customs, bites, enqueued
from redrive.stores.upkeep import StoreAbsent

if TYPE_CHECKING:
    from redrive.app import Redrive

Place = tuple[Instant, int]
"""When it was enqueued, and where its line begins."""

ABOUT = """Take in letters that `letters export` wrote. They lie there until somebody replays them.

\b
Examples:
  redrive letters import letters.jsonl --reason 'from the old server'
  redrive letters import letters.jsonl --reason 'from the old server' --dry-run
  redrive letters export - --attempts | redrive letters import - --store sqlite:///other.db --reason 'moving'

They come with payload, counters, tags and last error, and with their attempts if they were exported with --attempts.
Notes and deeds of the other store are not taken over: what people did begins here with the import.

All lines are looked at first. If one cannot be taken in, none is, and the faults are named by line and field. Ids that
are there already, or were, are left as they are: repeating an import takes in the rest. In a pipe stdout has the ids
that were taken in.
"""


TABLE = b'"id","queue",'
"""How the header of an export as CSV begins."""
NO_TABLE = "export JSON lines: redrive letters export letters.jsonl"


@click.command("import", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("file", metavar="FILE | -")
@reason_option()
@dry_run_option("Look at all of them, say what would be taken in, and take in nothing.")
@json_option
@store_option
@verbose_option
def import_letters(*, file: str, reason: str, dry_run: bool, as_json: bool, store: str) -> int:
    why = check_reason(reason)
    with _opened(file) as source:
        places = _look(source)
        try:
            added, already, left = visit(
                store, lambda app: _take_in(app, source, places, why, dry_run=dry_run), make=not dry_run
            )
        except StoreAbsent as absent:  # only where it is not to be made
            say(f"{absent.message}: an import would make it")
            added, already, left = [record.id for record in _records(source, places)], list[str](), 0
    there = f", {len(already):,} were there already" if already else ""
    said = f"{'would take in' if dry_run else 'took in'} {len(added):,}{there}"
    try:
        if as_json:
            write_json({"dry_run": dry_run, "imported": added, "already": already})
        elif not on_terminal():
            for one in added:
                write(clean(one))
    except Unwritten as error:
        raise error if dry_run else Unwritten(f"{said}, but {error.message}", hint=DONE_ALL_THE_SAME) from None
    if not as_json:
        say(said)
    if left:
        say(f"interrupted: {left:,} were not reached; say it again to go on")
        return Exit.INTERRUPTED
    return Exit.DONE


@contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """A file that can be read twice; stdin goes into one."""
    if file == "-":
        with tempfile.TemporaryFile() as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.seek(0)
            yield kept
        return
    try:
        source = Path(file).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        hint = "a file that redrive letters export wrote, or - for stdin"
        raise ConfigError(f"{file} cannot be read: {error.strerror}", field="FILE", hint=hint) from None
    with source:
        yield source


def _look(source: IO[bytes]) -> list[Place]:
    """Where each letter is, in the order of their enqueue. Raises if one cannot be taken in."""
    customs, places, at = Customs(), list[Place](), 0
    try:
        for number, line in enumerate(source, 1):
            if number == 1 and line.startswith(TABLE):
                raise ConfigError("it is a table, which has not all of a letter", field="FILE", hint=NO_TABLE)
            if line.strip():
                record = customs.look(f"line {number}", line)
                places.append((0 if record is None else enqueued(record), at))
            at += len(line)
        customs.stamp()
    except BadImport as error:
        for fault in error.faults:
            say(fault)
        more = f" and {error.more:,} more" if error.more else ""
        said = f"{len(error.faults):,}{more} fault{'s' * (len(error.faults) > 1)}; nothing was taken in"
        raise ConfigError(said, field="FILE", hint=error.hint) from None
    return sorted(places)


def _records(source: IO[bytes], places: Iterable[Place]) -> Iterator[Record]:
    for _, at in places:
        source.seek(at)
        yield record_from(source.readline())


async def _take_in(
    app: Redrive, source: IO[bytes], places: list[Place], why: str, *, dry_run: bool
) -> tuple[list[str], list[str], int]:
    added: list[str] = []
    already: list[str] = []
    progress, request = Progress("taken in", len(places)), new_id()
    with Interrupts("stopping after what is on its way; once more stops at once") as interrupts:
        waiting = bites(_records(source, places))
        while not interrupts.heard and (bite := await asyncio.to_thread(next, waiting, ())):
            done: PutResult = await app.letters.import_(bite, reason=why, dry_run=dry_run, request_id=request)
            added += done.added
            already += done.already
            progress.add(len(bite))
    progress.end()
    if added and not dry_run:
        await app.audit.seal()
    return added, already, len(places) - len(added) - len(already)
