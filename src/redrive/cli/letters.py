"""`redrive letters …`: the dead letter office on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from redrive.cli.access import (
    EVERY,
    HELP_NAMES,
    all_option,
    how_many,
    limit_option,
    since_option,
    store_of,
    store_option,
    verbose_option,
)
from redrive.cli.output import MISSING, brief, iso, say
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_ids, show_list
from redrive.cli.views import letter_object
from redrive.cli.watch import look, watch_option
from redrive.core.filters import parse
from redrive.core.item import Instant, Item, Letter, error_line, short_id
from redrive.core.redact import redact_text
from redrive.errors import ConfigError
from redrive.office.causes import CauseView
from redrive.office.facets import BYS, Facet, Facets
from redrive.office.selection import whole_filter
from redrive.stores.base import PAGE_LIMIT

if TYPE_CHECKING:
    from redrive.app import Redrive

T = TypeVar("T")
letters = LazyGroup(
    "letters",
    {
        "list": "redrive.cli.letters:list_letters",
        "show": "redrive.cli.letter:show",
        "payload": "redrive.cli.payload:payload",
        "replay": "redrive.cli.replay:replay",
        "recall": "redrive.cli.recall:recall",
        "archive": "redrive.cli.archive:archive",
        "restore": "redrive.cli.archive:restore",
        "discard": "redrive.cli.archive:discard",
        "move": "redrive.cli.tag:move",
        "tag": "redrive.cli.tag:tag",
        "note": "redrive.cli.tag:note",
        "skip": "redrive.cli.archive:skip",
        "changes": "redrive.cli.letter_changes:changes",
        "export": "redrive.cli.export:export",
        "import": "redrive.cli.import_:import_letters",
    },
    help="""Dead letters: find, read, send again, put away, carry over.

\b
Examples:
  redrive letters list
  redrive letters list --by cause
  redrive letters show k3v9q2ma
  redrive letters replay --where 'cause:41fa*' --reason 'fixed in 1.4.2'
""",
)

ABOUT = """List dead letters, last died first: the open ones, unless the filter names a disposition.

\b
Examples:
  redrive letters list
  redrive letters list --where 'queue:emails error:*Timeout' --since 1h
  redrive letters list --by cause
  redrive letters list --where 'disposition:archived reason:max_attempts' --json
  redrive letters list --where 'cause:41fa*' --all -q | redrive letters replay - --yes --reason 'fixed'

Words of a filter are AND; OR, -negation, ( ), field:a,b and the wildcard * are understood. In a pipe the columns are
ID QUEUE DIED REASON DISPOSITION ATTEMPTS ERRORS CRASHES CAUSE ERROR TEXT, separated by tabs. With --by they are VALUE
COUNT; by cause they are those of `redrive causes list`. Secrets in error texts are covered.
"""


@click.command("list", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--where", metavar="FILTER", default="", help="Which letters, as in 'queue:emails age>1h'.")
@click.option("--view", metavar="NAME", help="Letters of a saved view; with --where, those that match too.")
@click.option("--by", metavar="WORD", type=click.Choice(BYS), help=f"Count them by one of {', '.join(BYS)}.")
@since_option("Those that died within this long, as in 2h.")
@limit_option(100)
@all_option
@click.option("--cursor", metavar="C", help="Go on where an earlier list of the same ended.")
@list_options
@watch_option
@store_option
@verbose_option
def list_letters(
    *,
    where: str,
    view: str | None,
    by: str | None,
    since: int | None,
    limit: int,
    every: bool,
    cursor: str | None,
    shape: Shape,
    watch: int | None,
    store: str,
) -> int:
    parse(where)  # a bad filter is said before the store is looked for
    if by is not None and cursor is not None:
        raise ConfigError("there are no pages with --by", field="--cursor", hint="leave it out")
    most = how_many(limit, every=every)

    async def ask(app: Redrive) -> Callable[[], None]:
        text = await whole_filter(store_of(app), where, view, since)
        if by == "cause":
            return partial(
                _draw_causes, await app.letters.causes(text, limit=most), (await app.tally(members=False)).at, shape
            )
        if by is not None:
            return partial(_draw_facets, await app.letters.facets(text, by=by, limit=most), shape)
        if shape.quiet:
            ids, more = await gather(app, text, most, cursor, lambda item: item.id)
            return partial(show_ids, ids, more, shape, "no letters")
        found, more = await gather(app, text, most, cursor, lambda item: item)
        return partial(_draw, found, more, (await app.tally(members=False)).at, shape)

    return look(store, ask, lambda draw: draw(), watch)


def _draw(items: Sequence[Item], more: str | None, now: Instant, shape: Shape) -> None:
    listing: Listing[Item] = Listing(
        key="id",
        as_object=letter_object,
        table=lambda rows: (["ID", "QUEUE", "DIED", "REASON", "ATTEMPTS", "CAUSE", "ERROR"], _rows(rows, now)),
        line=lambda item: _line(item, item.letter) if item.letter else [],
        none="no letters",
        inside="letters",
        every=EVERY,
        kind=Item,
    )
    show_list(listing, items, shape, more=more)


def _draw_causes(rows: Sequence[CauseView], now: Instant, shape: Shape) -> None:
    from redrive.cli.causes import show_causes

    show_causes(rows, now, shape)


def _draw_facets(found: Facets, shape: Shape) -> None:
    listing: Listing[Facet] = Listing(
        key=found.by,
        as_object=lambda row: {found.by: row.value, "count": row.count},
        table=lambda rows: (["COUNT", found.by.upper()], [[str(row.count), row.value] for row in rows]),
        line=lambda row: [row.value, str(row.count)],
        none=f"no letters with a {found.by}",
        kind=Facet,
    )
    show_list(listing, found.facets, shape)
    if not found.whole:
        say(f"counted the last {found.letters:,} to die; there are more")


async def gather(
    app: Redrive, where: str, limit: int, cursor: str | None, kept: Callable[[Item], T]
) -> tuple[list[T], str | None]:
    """As many as asked for, however many pages that takes. `kept` of each: payloads of many need much room."""
    found: list[T] = []
    while True:
        page = await app.letters.find(where, limit=min(limit - len(found), PAGE_LIMIT), cursor=cursor)
        found += [kept(item) for item in page]
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return found, cursor


def _rows(items: Sequence[Item], now: Instant) -> list[list[str]]:
    return [_row(item, item.letter, now) for item in items if item.letter]


def _row(item: Item, letter: Letter, now: Instant) -> list[str]:
    failure = letter.failure
    died = f"{brief(now - letter.died_at)} ago"
    error = error_line(failure.type, redact_text(failure.text))
    return [short_id(item.id), item.queue, died, letter.reason, str(item.attempt), failure.cause, error]


def _line(item: Item, letter: Letter) -> list[str]:
    failure = letter.failure
    head = [item.id, item.queue, iso(letter.died_at) or MISSING, letter.reason, letter.disposition]
    counts = [str(item.attempt), str(item.errors), str(item.crashes)]
    return [*head, *counts, failure.cause, failure.type, redact_text(failure.text)]
