"""`redrive letters export`: letters as JSON lines for an import, or as a table for people."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from redrive.cli.access import HELP_NAMES, since_option, store_of, store_option, verbose_option, visit
from redrive.cli.asking import Progress
from redrive.cli.covered import covered_payload
from redrive.cli.output import Unwritten, clean, raw_output, say
from redrive.core.filters import parse
from redrive.core.redact import redact_text
from redrive.errors import ConfigError
from redrive.office.files import new_file
from redrive.office.letters import exported_pages, letters_matching
from redrive.office.records import Record, line_of, payload_of
from redrive.office.selection import whole_filter

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Write letters to a file, or to stdout: JSON lines that `letters import` reads, or CSV for a spreadsheet.

\b
Examples:
  redrive letters export letters.jsonl
  redrive letters export letters.csv --where 'queue:emails' --since 7d
  redrive letters export - --attempts | redrive letters import - --store sqlite:///other.db --reason 'moving'

The open letters, unless the filter names a disposition. JSON lines have the payload with its secrets, counters, tags,
the last error and where the letter lies; the attempts only with --attempts. Notes and whatever else people did are not
in them: they stay in this store and its audit, so keep it as long as you need them. CSV has secrets covered, and cells
that a spreadsheet would take for a formula begin with '. A file that exists is left alone without --force; a new one
can be read by you alone. Letters stay where they are.
"""
CSV_COLUMNS = [
    "id",
    "queue",
    "disposition",
    "reason",
    "route",
    "died_at",
    "enqueued_at",
    "priority",
    "attempts",
    "errors",
    "crashes",
    "deliveries",
    "replays",
    "cause",
    "error",
    "category",
    "rule",
    "tags",
    "text",
    "payload",
]
ROOM = "make room, or name another place"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@click.command("export", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("file", metavar="[FILE]", default="-")
@click.option("--jsonl", "as_jsonl", is_flag=True, help="JSON lines; so it is unless a table is asked for.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="A table with fixed columns and a header; so it is if FILE ends in .csv."
)
@click.option("--where", metavar="FILTER", default="", help="Which letters, as in 'queue:emails age>1h'.")
@click.option("--view", metavar="NAME", help="Letters of a saved view; with --where, those that match too.")
@since_option("Those that died within this long, as in 2h.")
@click.option("--attempts", is_flag=True, help="Also the history of attempts; slower.")
@click.option("--decrypt", is_flag=True, help="Encrypted payloads in clear; needs their keys.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@store_option
@verbose_option
def export(
    *,
    file: str,
    as_jsonl: bool,
    as_csv: bool,
    where: str,
    view: str | None,
    since: int | None,
    attempts: bool,
    decrypt: bool,
    force: bool,
    store: str,
) -> None:
    parse(where)
    if as_jsonl and as_csv:
        raise click.UsageError("--jsonl and --csv exclude each other", ctx=click.get_current_context())
    # Whoever opens it in a spreadsheet expects a table, and its secrets covered.
    as_csv = as_csv or (file.lower().endswith(".csv") and not as_jsonl)
    if as_csv and attempts:
        raise ConfigError("a table has no room for them", field="--attempts", hint="say --jsonl instead of --csv")
    written = csv_lines if as_csv else json_lines

    async def copy(app: Redrive, out: IO[bytes]) -> Copied:
        found = letters_matching(await whole_filter(store_of(app), where, view, since))
        pages = exported_pages(store_of(app), found, attempts=attempts, decrypt=decrypt)
        return await _copy(pages, out, written)

    if file == "-":
        with raw_output() as out:
            count, sealed = visit(store, lambda app: copy(app, out))
    else:
        count, sealed = _into_file(Path(file), lambda out: visit(store, lambda app: copy(app, out)), force=force)
    secrets = "" if as_csv else "; payloads are as they are, with any secrets"
    without = "" if as_csv or attempts or not count else "; attempts were left out (--attempts takes them along)"
    still = f"; {sealed:,} stayed encrypted (--decrypt writes them in clear)" if sealed else ""
    say(f"exported {count:,}{secrets}{without}{still}")


class Copied(NamedTuple):
    """`sealed`: how many of them have an encrypted payload."""

    letters: int
    sealed: int


async def _copy(
    pages: AsyncIterator[list[Record]], out: IO[bytes], written: Callable[[Iterable[Record]], bytes]
) -> Copied:
    count = sealed = 0
    progress = Progress("exported")
    if written is csv_lines:
        await asyncio.to_thread(out.write, csv_header())
    async for records in pages:
        await asyncio.to_thread(out.write, written(records))
        count += len(records)
        sealed += sum(record.payload_key is not None for record in records)
        progress.add(len(records))
    progress.end()
    return Copied(count, sealed)


def _into_file(path: Path, copy: Callable[[IO[bytes]], Copied], *, force: bool) -> Copied:
    try:
        with new_file(path, force=force) as out:
            return copy(out)
    except OSError as error:
        raise Unwritten(f"{path} cannot be written: {error.strerror}; nothing of it is left", hint=ROOM) from None


def json_lines(records: Iterable[Record]) -> bytes:
    return b"".join([line_of(record) + b"\n" for record in records])


def csv_header() -> bytes:
    return _rows([CSV_COLUMNS])


def csv_lines(records: Iterable[Record]) -> bytes:
    return _rows([[neutral(cell) for cell in _cells(record)] for record in records])


def _rows(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    # All cells quoted: whatever a spreadsheet takes for a separator, it finds none inside of a cell.
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _cells(record: Record) -> Iterable[str]:
    for name in CSV_COLUMNS[:-3]:
        yield clean(str(getattr(record, name)))
    yield clean(" ".join(record.tags))
    yield clean(redact_text(record.text))
    text, _ = covered_payload(payload_of(record), indent=None)
    yield clean(text)


def neutral(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula, blanks before it or not."""
    return f"'{cell}" if cell.lstrip(" \u00a0").startswith(FORMULA) else cell
