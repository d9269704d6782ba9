"""`redrive letters changes`: the change feed of letters, in the order of their last changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from redrive.cli.access import (
    HELP_NAMES,
    WholeNumber,
    all_option,
    how_many,
    limit_option,
    store_option,
    verbose_option,
    visit,
)
from redrive.cli.output import MISSING, say
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.cli.views import letter_object
from redrive.core.item import short_id
from redrive.core.verbs import LetterChange
from redrive.stores.base import PAGE_LIMIT

ABOUT = """List items that are or were letters, in the order of their last changes, each once and as it is now.

\b
Examples:
  redrive letters changes
  redrive letters changes --after 1204 --json
  redrive letters changes --after 1204 --all -q

Every write that makes, changes or ends a letter gives it the next number of the store. Continue with --after and the
last number: no change is missed, not even one made meanwhile. In JSON that number is `next`, and a pruned item is null.
In a pipe the columns are NUMBER ID STATE QUEUE DISPOSITION CAUSE, separated by tabs.
"""
GONE = "pruned"


@click.command("changes", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--after", metavar="N", type=WholeNumber(min=0), default=0, help="Only changes with a higher number.")
@limit_option(100)
@all_option
@list_options
@store_option
@verbose_option
def changes(*, after: int, limit: int, every: bool, shape: Shape, store: str) -> int:
    most = how_many(limit, every=every)

    async def ask(app: Any) -> list[LetterChange]:
        found: list[LetterChange] = []
        while len(found) < most:
            last = found[-1].number if found else after
            page = await app.letters.changes(after=last, limit=min(most - len(found), PAGE_LIMIT))
            found += page
            if not page:
                break
        return found

    found = visit(store, ask)
    last = found[-1].number if found else after
    listing: Listing[LetterChange] = Listing(
        key="id",
        as_object=_as_object,
        table=lambda rows: (["NUMBER", "ID", "STATE", "QUEUE", "DISPOSITION", "CAUSE"], _rows(rows)),
        line=_line,
        none="no changes",
        inside="changes",
        kind=LetterChange,
    )
    show_list(listing, found, shape, beside={"next": last})
    if found and not shape.json:
        say(f"go on with --after {last}")
    return 0


def _as_object(change: LetterChange) -> dict[str, Any]:
    item = None if change.item is None else letter_object(change.item)
    return {"number": change.number, "id": change.id, "item": item}


def _rows(changes: Sequence[LetterChange]) -> list[list[str]]:
    return [[number, short_id(item_id), *facts] for number, item_id, *facts in map(_line, changes)]


def _line(change: LetterChange) -> list[str]:
    item = change.item
    if item is None:
        return [str(change.number), change.id, GONE, MISSING, MISSING, MISSING]
    letter = item.letter
    disposition, cause = (MISSING, MISSING) if letter is None else (str(letter.disposition), letter.failure.cause)
    return [str(change.number), change.id, str(item.state), item.queue, disposition, cause]
