"""`redrive item attempts`: how each delivery of an item ended."""

from __future__ import annotations

import click

from redrive.cli.access import HELP_NAMES, store_option, verbose_option, visit
from redrive.cli.covered import output_lines
from redrive.cli.output import MISSING, brief, iso, say
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.cli.views import attempt_object
from redrive.core.item import Attempt, error_line
from redrive.core.redact import redact_text

ABOUT = """List the attempts of an item, first one first. A success at the first try leaves none, unless its handler
kept output.

\b
Examples:
  redrive item attempts k3v9q2ma
  redrive item attempts k3v9q2ma --jsonl | jq -r .failure.error

Output that a handler kept stands under its attempt, cut after 20 lines; --json and --jsonl have all of it. Secrets in
it are covered. In a pipe the columns are DELIVERY ATTEMPT STARTED RAN ENDING WORKER CAUSE ERROR TEXT NOTE, separated by
tabs, without output.
"""
HEADER = ["DELIVERY", "ATTEMPT", "STARTED", "RAN", "ENDING", "WORKER", "ERROR"]


@click.command("attempts", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@list_options
@store_option
@verbose_option
def attempts(*, id: str, shape: Shape, store: str) -> None:
    history = visit(store, lambda app: app.letters.get(id))
    listing: Listing[Attempt] = Listing(
        key="delivery",
        as_object=attempt_object,
        table=lambda rows: (HEADER, [_row(each) for each in rows]),
        line=_line,
        none="no attempts",
        kind=Attempt,
        below=lambda each: (f"  {line}" for line in output_lines(each.output, history.item.id)),
    )
    show_list(listing, history.attempts, shape)
    if history.omitted:
        say(f"{history.omitted:,} attempts were left out of the middle of this history")


def _row(each: Attempt) -> list[str]:
    facts = [str(each.delivery), str(each.number), iso(each.started_at) or MISSING, brief(each.ran)]
    return [*facts, str(each.ending), each.worker, _error(each) or each.note]


def _line(each: Attempt) -> list[str]:
    failure = each.failure
    told = [MISSING] * 3 if failure is None else [failure.cause, failure.type, redact_text(failure.text)]
    facts = [str(each.delivery), str(each.number), iso(each.started_at) or MISSING, f"{each.ran / 1000:g}"]
    return [*facts, str(each.ending), each.worker, *told, each.note or MISSING]


def _error(each: Attempt) -> str:
    return "" if each.failure is None else error_line(each.failure.type, redact_text(each.failure.text))
