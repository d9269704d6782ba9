"""`redrive item …`: any item, dead or alive."""

from __future__ import annotations

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.acts import Wish, Words, act, named, report
from redrive.cli.letter import page, read
from redrive.cli.output import say, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.views import history_object
from redrive.core.states import State
from redrive.core.verbs import Amended, Cancel
from redrive.office.letters import check_reason

item = LazyGroup(
    "item",
    {"show": "redrive.cli.item:show", "cancel": "redrive.cli.item:cancel"},
    help="""Any item, dead or alive: look at it, cancel it.

\b
Examples:
  redrive item show k3v9q2ma
  redrive item cancel k3v9q2ma --reason 'ordered twice'
""",
)

ABOUT_SHOW = """Show an item: its state, what it waits for, its keys, each attempt, the payload and what operators did.

\b
Examples:
  redrive item show k3v9q2ma
  redrive item show k3v9q2ma --json | jq '.hold, .blocked_by'

ID may be any prefix of at least four characters that no other item has.
"""
ABOUT_CANCEL = """Cancel items. What waits ends at once; what runs is asked to stop.

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


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@json_option
@store_option
@verbose_option
def show(*, id: str, as_json: bool, store: str) -> None:
    history, now = visit(store, lambda app: read(app, id))
    if as_json:
        write_json(history_object(history))
        return
    for line in page(history, now):
        write(line)


@click.command("cancel", help=ABOUT_CANCEL, context_settings=HELP_NAMES)
@click.argument("ids", metavar="ID... | -", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@click.option("--force", is_flag=True, help="Take running items from their workers at once.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be cancelled, and do nothing.")
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
