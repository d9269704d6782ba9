"""`redrive health`: is something wrong that somebody should look at? For monitors, and for people in a hurry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, WholeNumber, json_option, store_option, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import clean, counted, iso, on_terminal, red, tabbed, write, write_json
from redrive.cli.watch import look, watch_option

if TYPE_CHECKING:
    from redrive.office.health import Health

ABOUT = """Say what is wrong: work without a worker, waiting too long or standing still behind dead letters, lost
workers, open gates, full routes, outboxes that were not delivered for five minutes, a Redis with hardly any memory
left. Exit 10 if there is anything, 0 if not, 7 if the store cannot be asked.

\b
Examples:
  redrive health
  redrive health --oldest 5m --max-letters 0
  redrive health --json || echo degraded

A paused queue is left alone on purpose, and no trouble; dead letters are, if there are more than --max-letters.
In a pipe each line is KIND, WHAT, TEXT and a command that helps, separated by tabs; none if all is well.
"""


@click.command("health", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--oldest", metavar="DURATION", default="15m", show_default=True, help="Longer must nothing be due.")
@click.option("--max-letters", metavar="N", type=WholeNumber(min=0), help="More open letters are trouble.")
@json_option
@watch_option
@store_option
@verbose_option
def health(*, oldest: str, max_letters: int | None, as_json: bool, watch: int | None, store: str) -> int:
    from redrive.core import durations

    durations.parse(oldest, field="--oldest")  # before the store is opened
    healthy = True

    def draw(found: Health) -> None:
        nonlocal healthy
        healthy = found.healthy
        _show(found, as_json=as_json)

    ended = look(store, lambda app: app.health(oldest=oldest, max_letters=max_letters), draw, watch)
    return Exit.UNSOUND if not healthy and ended is Exit.DONE else ended


def _show(found: Health, *, as_json: bool) -> None:
    if as_json:
        problems = [{"kind": each.kind, "what": each.what, "text": each.text, "do": each.do} for each in found.problems]
        write_json({"healthy": found.healthy, "at": iso(found.at), "problems": problems})
    elif not on_terminal():
        tabbed([each.kind, each.what, each.text, each.do] for each in found.problems)
    elif found.healthy:
        write(f"healthy: {counted(found.queues, 'queue')}, {counted(found.workers, 'live worker')}")
    else:
        for each in found.problems:
            write(f"{red(clean(each.text))}\n    {clean(each.do)}")
