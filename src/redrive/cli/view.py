"""`redrive view …`: filters with a name, for everybody who works on the store."""

from __future__ import annotations

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, iso, say, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.core.filters import parse
from redrive.office.views import View

view = LazyGroup(
    "view",
    {
        "list": "redrive.cli.view:list_views",
        "show": "redrive.cli.view:show",
        "save": "redrive.cli.view:save",
        "remove": "redrive.cli.view:remove",
    },
    help="""Saved views: filters with a name.

\b
Examples:
  redrive view save timeouts 'error:*Timeout died<1d'
  redrive letters list --view timeouts
  redrive letters replay --view timeouts --reason 'the network is back'
""",
)

ABOUT_LIST = """List the saved views.

\b
Examples:
  redrive view list
  redrive view list -q

In a pipe the columns are NAME FILTER BY SAVED, separated by tabs.
"""
ABOUT_SHOW = """Show one saved view.

\b
Examples:
  redrive view show timeouts
  redrive view show timeouts --json | jq -r .filter
"""
ABOUT_SAVE = """Keep a filter under a name.

\b
Examples:
  redrive view save timeouts 'error:*Timeout died<1d'
  redrive view save timeouts 'error:*Timeout died<7d' --replace

A name has up to 64 letters, digits, dots, dashes and underscores. One that is taken is refused without --replace.
"""
ABOUT_REMOVE = """Forget a saved view. The letters it showed stay as they are.

\b
Examples:
  redrive view remove timeouts
  redrive view list -q
"""


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@store_option
@verbose_option
def list_views(*, shape: Shape, store: str) -> None:
    listing: Listing[View] = Listing(
        key="name",
        as_object=_as_object,
        table=lambda rows: (["NAME", "BY", "SAVED", "FILTER"], [_row(row) for row in rows]),
        line=lambda row: [row.name, row.filter, row.by, iso(row.at) or MISSING],
        none="no views yet",
        kind=View,
    )
    show_list(listing, visit(store, lambda app: app.views.list()), shape)


def _as_object(row: View) -> dict[str, object]:
    return {"name": row.name, "filter": row.filter, "by": row.by, "at": iso(row.at)}


def _row(row: View) -> list[str]:
    return [row.name, row.by, iso(row.at) or MISSING, row.filter]


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="NAME")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    row = visit(store, lambda app: app.views.get(name))
    if as_json:
        write_json(_as_object(row))
    else:
        show_facts(f"view {row.name}", [("filter", row.filter), ("by", row.by), ("saved", iso(row.at) or MISSING)])


@click.command("save", help=ABOUT_SAVE, context_settings=HELP_NAMES)
@click.argument("name", metavar="NAME")
@click.argument("filter", metavar="FILTER")
@click.option("--replace", is_flag=True, help="Also if the name has another filter.")
@json_option
@store_option
@verbose_option
def save(*, name: str, filter: str, replace: bool, as_json: bool, store: str) -> None:
    parse(filter)
    row = visit(store, lambda app: app.views.save(name, filter, replace=replace), acts=True)
    if as_json:
        write_json(_as_object(row))
    else:
        say(f"saved {row.name}: {row.filter}")


@click.command("remove", help=ABOUT_REMOVE, context_settings=HELP_NAMES)
@click.argument("name", metavar="NAME")
@store_option
@verbose_option
def remove(*, name: str, store: str) -> None:
    visit(store, lambda app: app.views.remove(name), acts=True)
    say(f"removed {name}")
