"""`redrive db status`: versions, schema, sizes and settings."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, upkeep_of, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import MISSING, bold, clean, on_terminal, say, tabbed, write, write_json
from redrive.stores.upkeep import StoreStatus

ABOUT = """Show the database: versions, schema, sizes, settings. Changes nothing, not even an old schema.

\b
Examples:
  redrive db status
  redrive db status --json | jq '.free_pages * .page_size'
  redrive db status --store postgresql://shop@localhost/shop --json | jq .dead_rows

In a pipe each line is a name and a value, separated by a tab. Which there are besides the first depends on the engine.
Exit 7 if it cannot be read, or no app can work with it: a replica, or a schema of a newer redrive. What is known of it
is shown all the same.
"""


@click.command("status", help=ABOUT, context_settings=HELP_NAMES)
@json_option
@store_option
@verbose_option
def status(*, as_json: bool, store: str) -> Exit:
    found = asyncio.run(upkeep_of(store).status())
    if as_json:
        write_json(_as_object(found))
    elif on_terminal():
        write(bold(clean(found.location)))
        for name, value in found.words():
            write(f"  {name:<11}{clean(value)}")
    else:
        tabbed(_lines(found))
    trouble = found.unusable()
    if not trouble:
        return Exit.DONE
    say(f"redrive: {clean(trouble)}")
    return Exit.STORE


def _as_object(found: StoreStatus) -> dict[str, Any]:
    return {
        "engine": found.engine,
        "location": found.location,
        "binding": found.binding,
        "version": found.version,
        "risky": found.risky,
        "schema": found.schema,
        "known": found.known,
        "pending": list(found.pending),
        "changed": list(found.changed),
        "durability": found.durability,
        **found.facts(),
        "trouble": found.unusable(),
    }


def _lines(found: StoreStatus) -> list[list[str]]:
    return [[name, _plain(value)] for name, value in _as_object(found).items()]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(str(each) for each in value) or MISSING
    return str(value) or MISSING
