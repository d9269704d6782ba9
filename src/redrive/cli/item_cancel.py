"""`redrive item cancel`: end what waits, and ask what runs to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import (
    HELP_NAMES,
    dry_run_option,
    json_option,
    reason_option,
    store_option,
    verbose_option,
    yes_option,
)
from redrive.cli.acts import Done, Wish, Words, act, named, report
from redrive.core.select import And, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import Cancel
from redrive.office.letters import check_reason
from redrive.stores.base import PAGE_LIMIT

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
WORDS = Words(
    noun="item",
    would_be="cancelled",
    question="Cancel {count}?",
    would="would cancel",
    done="cancelled",
    key="cancelled",
)


@click.command("cancel", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="ID... | -", nargs=-1, required=True)
@reason_option()
@click.option("--force", is_flag=True, help="Take running items from their workers at once.")
@yes_option
@dry_run_option("Say what would be cancelled, and do nothing.")
@json_option
@store_option
@verbose_option
def cancel(
    *, ids: tuple[str, ...], reason: str, force: bool, yes: bool, dry_run: bool, as_json: bool, store: str
) -> int:
    why = check_reason(reason)

    async def end(app: Redrive, ids: list[str]) -> Done:
        done = await app.cancel(ids, reason=why, force=force)
        running = await _running(app, done.changed)
        return Done(done, asked=tuple(each for each in done.changed if each in running))

    wish = Wish(named(ids), None, Cancel(), WORDS, yes, dry_run, end)
    return report(act(store, wish), wish, as_json=as_json)


async def _running(app: Redrive, ids: tuple[str, ...]) -> set[str]:
    """What was held when it was cancelled is only asked to stop."""
    running: set[str] = set()
    for start in range(0, len(ids), PAGE_LIMIT):
        these = And((Ids(ids[start : start + PAGE_LIMIT]), Match("state", "=", State.LEASED)))
        running |= {item.id for item in await app._store.find(these, PAGE_LIMIT)}  # noqa: SLF001 - too many for a filter
    return running
