"""`redrive item cancel`: end what waits, and ask what runs to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, store_of
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.selection import Choice, named
from redrive.core.acts import Cancel
from redrive.office.bulk import Done, running_among

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Cancel items. What waits ends at once; what runs is asked to stop.

\b
Examples:
  redrive item cancel k3v9q2ma --reason 'ordered twice'
  redrive item cancel k3v9q2ma --reason 'its worker hangs' --force

A worker hears of it within seconds and cancels the handler; a plain def handler must look for itself. A handler that
finishes first is done all the same. --force does not wait: the item is taken from its worker, whose result no longer
counts, though what the handler does meanwhile cannot be undone.
ID may be a unique prefix; - reads ids from stdin, one a line. For more than 100 it asks first; without a terminal say
--yes. In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were.
"""
WORDS = Words("cancelled", "Cancel {count}?", "would cancel", noun="item")


@click.command("cancel", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="ID... | -", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Take running items from their workers at once.")
@act_options("Say what would be cancelled, and do nothing.")
def cancel(*, ids: tuple[str, ...], force: bool, how: How) -> int:
    async def end(app: Redrive, ids: list[str]) -> Done:
        done = await app.cancel(ids, reason=how.reason, force=force, request_id=how.request)
        running = await running_among(store_of(app), done.changed)
        return Done(done, asked=tuple([each for each in done.changed if each in running]))

    return act(how, Wish(Choice(named(ids)), Cancel(), WORDS, end))
