"""`redrive item run`: run one waiting item in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, json_option, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import write, write_json

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.item import Instant, Item

ABOUT = """Run one waiting item now, in this process, with the handler of your app.

\b
Examples:
  redrive item run k3v9q2ma --app tasks:app
  redrive item run k3v9q2ma --app tasks:app --json | jq -r .state

It runs even if it is not due, its queue is paused, or a rate, breaker or max_running would hold it; it counts under
these limits like any other. Its outcome is settled as in a worker: done, waiting for another attempt, or dead. An item
that is running, has ended or waits for other items is not run: exit 6.
The app brings its own store. ID may be any prefix of at least four characters that no other item has.
Exit 0 when the item is done, 1 when it is not.
"""


@click.command("run", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@click.option(
    "--app",
    "target",
    metavar="MODULE:APP",
    envvar="REDRIVE_APP",
    required=True,
    help="Your app, for its store and handlers; also REDRIVE_APP.",
)
@json_option
@verbose_option
def run(*, id: str, target: str, as_json: bool) -> Exit:
    from redrive.cli.load import load_app
    from redrive.cli.views import item_object
    from redrive.core.states import State
    from redrive.office.scene import state_of

    item, now = asyncio.run(_run(load_app(target), id))
    if as_json:
        write_json(item_object(item, now))
    else:
        write(f"{item.id}\t{state_of(item, now)}")
    return Exit.DONE if item.state is State.DONE else Exit.FAILED


async def _run(app: Redrive, text: str) -> tuple[Item, Instant]:
    async with app:
        item = await app.run_item(await app.letters.resolve(text))
        return item, (await app.tally(members=False)).at
