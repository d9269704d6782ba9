"""`redrive db backup`: a copy while everything runs."""

from __future__ import annotations

import asyncio

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, upkeep_of, verbose_option
from redrive.cli.output import brief, clean, on_terminal, seconds, tabbed, write, write_json
from redrive.core.verbs import Backup

ABOUT = """Copy the database to FILE while everything runs.

\b
Examples:
  redrive db backup backup.db
  redrive db backup /mnt/other-disk/redrive-$(date +%F).db
  redrive db backup backup.db --force

The copy has all that was committed when it began, in one file. It is checked and on the disk before it gets its name.
Items that run at that time run again from the copy. In a pipe the columns are FILE BYTES SECONDS, separated by tabs.

A server is copied by its own means: there it only says which command does it (exit 2).
"""


@click.command("backup", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@json_option
@store_option
@verbose_option
def backup(*, file: str, force: bool, as_json: bool, store: str) -> None:
    made = asyncio.run(upkeep_of(store).backup(file, force=force))
    if as_json:
        write_json({"file": made.path, "size": made.size, "took": seconds(made.took)})
    elif on_terminal():
        write(_copied(file, made))
    else:
        tabbed([[made.path, str(made.size), str(seconds(made.took))]])


def _copied(file: str, made: Backup) -> str:
    return clean(f"{file}: {made.size:,} bytes, copied and checked in {brief(made.took)}")
