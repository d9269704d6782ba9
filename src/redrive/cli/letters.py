"""`redrive letters …`: the dead letter office on the command line."""

from __future__ import annotations

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, brief, columns, iso, on_terminal, say, tabbed, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.views import letter_object
from redrive.core.filters import parse
from redrive.core.item import Instant, Item, Letter, short_id
from redrive.stores.base import PAGE_LIMIT

letters = LazyGroup(
    "letters",
    {
        "list": "redrive.cli.letters:list_letters",
        "show": "redrive.cli.letter:show",
        "replay": "redrive.cli.replay:replay",
        "skip": "redrive.cli.skip:skip",
    },
    help="""Dead letters: find, read and send again.

\b
Examples:
  redrive letters list
  redrive letters show k3v9q2ma
  redrive letters replay --where 'cause:41fa*' --reason 'fixed in 1.4.2'
""",
)

ABOUT = """List dead letters, last died first: the open ones, unless the filter names a disposition.

\b
Examples:
  redrive letters list
  redrive letters list --where 'queue:emails error:*Timeout died<1h'
  redrive letters list --where 'disposition:archived reason:max_attempts' --json
  redrive letters list --where 'cause:41fa*' -q | redrive letters replay - --yes --reason 'fixed'

Words of a filter are AND; OR, -negation, ( ), field:a,b and the wildcard * are understood. In a pipe the columns are
ID QUEUE DIED REASON DISPOSITION ATTEMPTS ERRORS CRASHES CAUSE ERROR TEXT, separated by tabs.
"""


@click.command("list", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--where", metavar="FILTER", default="", help="Which letters, as in 'queue:emails age>1h'.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--cursor", metavar="C", help="Go on where an earlier list ended.")
@click.option("-q", "--quiet", is_flag=True, help="Ids only, one a line.")
@json_option
@store_option
@verbose_option
def list_letters(*, where: str, limit: int, cursor: str | None, quiet: bool, as_json: bool, store: str) -> None:
    if quiet and as_json:
        raise click.UsageError("-q and --json exclude each other", ctx=click.get_current_context())
    parse(where)  # a bad filter is said before the store is looked for
    items, more, now = visit(store, lambda app: _find(app, where, limit, cursor))
    if as_json:
        write_json({"letters": [letter_object(item) for item in items], "next": more})
        return
    if quiet:
        for item in items:
            write(item.id)
    elif on_terminal():
        columns(["ID", "QUEUE", "DIED", "REASON", "ATTEMPTS", "CAUSE", "ERROR"], _rows(items, now))
    else:
        tabbed(_line(item, item.letter) for item in items if item.letter)
    if more is not None:
        say(f"there are more: --cursor {more}")
    elif not items and on_terminal():
        say("no letters")


async def _find(app: Redrive, where: str, limit: int, cursor: str | None) -> tuple[list[Item], str | None, Instant]:
    found, more = await gather(app, where, limit, cursor)
    return found, more, (await app.tally()).at


async def gather(app: Redrive, where: str, limit: int, cursor: str | None) -> tuple[list[Item], str | None]:
    """As many as asked for, however many pages that takes."""
    found: list[Item] = []
    while True:
        page = await app.letters.find(where, limit=min(limit - len(found), PAGE_LIMIT), cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return found, cursor


def _rows(items: list[Item], now: Instant) -> list[list[str]]:
    return [_row(item, item.letter, now) for item in items if item.letter]


def _row(item: Item, letter: Letter, now: Instant) -> list[str]:
    failure = letter.failure
    died = f"{brief(now - letter.died_at)} ago"
    error = f"{failure.type}: {failure.text}" if failure.text else failure.type
    return [short_id(item.id), item.queue, died, letter.reason, str(item.attempt), failure.cause, error]


def _line(item: Item, letter: Letter) -> list[str]:
    failure = letter.failure
    head = [item.id, item.queue, iso(letter.died_at) or MISSING, letter.reason, letter.disposition]
    counts = [str(item.attempt), str(item.errors), str(item.crashes)]
    return [*head, *counts, failure.cause, failure.type, failure.text]
