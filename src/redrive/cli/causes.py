"""`redrive causes …`: letters by what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, json_option, limit_option, store_of, store_option, verbose_option, visit
from redrive.cli.output import MISSING, brief, iso, say, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.filters import parse, render
from redrive.core.item import Instant
from redrive.core.redact import redact_text
from redrive.core.select import Match
from redrive.office.causes import CauseView
from redrive.office.facets import LOOKED_AT
from redrive.office.selection import whole_filter

if TYPE_CHECKING:
    from redrive.app import Redrive

causes = LazyGroup(
    "causes",
    {"list": "redrive.cli.causes:list_causes", "show": "redrive.cli.causes:show"},
    help="""Causes: letters grouped by what went wrong.

\b
Examples:
  redrive causes list
  redrive causes show 41fa
  redrive letters replay --where 'cause:41fa*' --reason 'fixed in 1.4.2'
""",
)

COLUMNS = """In a pipe the columns are CAUSE COUNT TREND ERROR TEXT QUEUES FIRST LAST SAMPLE, separated by tabs.
TREND is the last hour against the hour before: new, up, steady, down or quiet."""
ABOUT_LIST = f"""List the causes of open letters, most letters first.

\b
Examples:
  redrive causes list
  redrive causes list --where 'queue:payments died<1d' --limit 5
  redrive causes list --json | jq '.[] | select(.trend == "up")'

{COLUMNS} A filter that names more than a
queue is answered by looking at the letters, at most at the last {LOOKED_AT:,} to die: if there are more, it says so.
"""
ABOUT_SHOW = """Show one cause: how many letters, since when, where, whether it grows, and a sample.

\b
Examples:
  redrive causes show 41fa
  redrive causes show 41fa --json | jq -r .sample

CAUSE may be the beginning of one, if no other begins like it.
"""


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@click.option("--where", metavar="FILTER", default="", help="Which letters, as in 'queue:emails died<1d'.")
@click.option("--view", metavar="NAME", help="Letters of a saved view.")
@limit_option(20)
@list_options
@watch_option
@store_option
@verbose_option
def list_causes(*, where: str, view: str | None, limit: int, shape: Shape, watch: int | None, store: str) -> int:
    parse(where)

    async def ask(app: Redrive) -> tuple[tuple[CauseView, ...], Instant]:
        text = await whole_filter(store_of(app), where, view)
        return await app.letters.causes(text, limit=limit), (await app.tally(members=False)).at

    return look(store, ask, lambda found: show_causes(*found, shape), watch)


def show_causes(rows: Sequence[CauseView], now: Instant, shape: Shape) -> None:
    listing: Listing[CauseView] = Listing(
        key="cause",
        as_object=cause_object,
        table=lambda each: (
            ["CAUSE", "COUNT", "TREND", "QUEUES", "LAST", "ERROR"],
            [_row(row, now) for row in each],
        ),
        line=_line,
        none="no letters",
        kind=CauseView,
    )
    show_list(listing, rows, shape)
    if not all(row.whole for row in rows):
        say(f"counted the last {LOOKED_AT:,} letters to die; there are more")


def cause_object(row: CauseView) -> dict[str, object]:
    return {
        "cause": row.cause,
        "count": row.count,
        "trend": row.trend,
        "last_hour": row.last_hour,
        "hour_before": row.hour_before,
        "error": row.error,
        "text": redact_text(row.text),
        "first_at": iso(row.first_at),
        "last_at": iso(row.last_at),
        "queues": list(row.queues),
        "sample": row.sample or None,
        "whole": row.whole,
    }


def _row(row: CauseView, now: Instant) -> list[str]:
    queues = ",".join(row.queues[:3]) + ("…" if len(row.queues) > 3 else "")
    return [row.cause, str(row.count), row.trend, queues, f"{brief(now - row.last_at)} ago", _error(row)]


def _error(row: CauseView) -> str:
    text = redact_text(row.text)
    return f"{row.error}: {text}" if text else row.error


def _line(row: CauseView) -> list[str]:
    times = [iso(row.first_at) or MISSING, iso(row.last_at) or MISSING]
    text = redact_text(row.text)
    return [row.cause, str(row.count), row.trend, row.error, text, ",".join(row.queues), *times, row.sample or MISSING]


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="CAUSE")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    async def ask(app: Redrive) -> tuple[CauseView, Instant]:
        return await app.letters.cause(name), (await app.tally(members=False)).at

    row, now = visit(store, ask)
    if as_json:
        write_json(cause_object(row))
        return
    facts = [
        ("letters", f"{row.count:,}{'' if row.whole else ' of the last to die; there are more'}"),
        ("trend", f"{row.trend}: {row.last_hour:,} in the last hour, {row.hour_before:,} in the hour before"),
        ("error", _error(row)),
        ("first", f"{iso(row.first_at)} ({brief(now - row.first_at)} ago)"),
        ("last", f"{iso(row.last_at)} ({brief(now - row.last_at)} ago)"),
        ("queues", ", ".join(row.queues)),
        ("sample", row.sample or MISSING),
        ("letters of it", f"redrive letters list --where {quote(render(Match('cause', '=', row.cause)))}"),
    ]
    show_facts(f"cause {row.cause}", facts)
