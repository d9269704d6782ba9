"""`redrive letters recall`: turn replayed items back into letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, store_of, visit
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.selection import Choice, named
from redrive.core.acts import Amended, Recall
from redrive.core.filters import parse as parse_filter
from redrive.errors import ConfigError
from redrive.office.recall import replayed_by

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Undo a replay: replayed items that no worker has leased since become the letters that they were.

\b
Examples:
  redrive letters recall k3v9q2ma --reason 'the bank is down again'
  redrive letters recall --request ticket-88 --reason 'the wrong letters'
  redrive letters recall --where 'queue:payments' --reason INC-88 --dry-run

Reason, error, times, disposition, route, counters, queue and position under the order key are restored; the history has
both acts. --request means all items that the replay with that request id sent; `redrive audit list` shows the ids; for
a replay in the background use `redrive replay undo`. Items that a worker has leased, or that have ended since, are
skipped and named. A filter selects waiting replayed items.
ID may be a unique prefix; - reads ids from stdin, one a line. With --where or more than 100 items it asks first;
without a terminal, use --yes. In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were.
"""


@click.command("recall", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every waiting replayed item that matches, instead of ids.")
@click.option("--request", metavar="ID", help="All items that the replay with this request id sent, instead of ids.")
@act_options("Show which items would be recalled, and change nothing.")
def recall(*, ids: tuple[str, ...], where: str | None, request: str | None, how: How) -> int:
    if bool(ids) + (where is not None) + (request is not None) != 1:
        text = "name items by id, by --where or by --request, one of the three"
        raise click.UsageError(text, ctx=click.get_current_context())
    if where is not None and not where.strip():
        raise ConfigError("filter must not be empty", field="--where", hint="for every replayed item: replays>0")
    parse_filter(where or "")
    chosen = named(ids)
    if request is not None:
        chosen = visit(how.store, lambda app: replayed_by(store_of(app), request))

    async def apply(app: Redrive, ids: list[str]) -> Amended:
        return await app.letters.recall(ids, reason=how.reason, request_id=how.request)

    words = Words("recalled", "Recall {count}?", "would recall", noun="item")
    return act(how, Wish(Choice(chosen, where), Recall(), words, apply))
