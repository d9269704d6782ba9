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
from redrive.cli.acts import Wish, Words, act, named, report
from redrive.cli.output import say
from redrive.core.states import State
from redrive.core.verbs import Amended, Cancel
from redrive.office.letters import check_reason

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
TOLD = 100
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

    async def end(app: Redrive, ids: list[str]) -> Amended:
        done = await app.cancel(ids, reason=why, force=force)
        for each in done.changed[:TOLD]:
            if (await app.get(each)).state is State.LEASED:
                say(f"{each} runs and was asked to stop")
        return done

    wish = Wish(named(ids), None, Cancel(), WORDS, yes, dry_run, end)
    return report(act(store, wish), wish, as_json=as_json)
