"""`redrive letters payload`: what the handler was to get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, store_of, store_option, verbose_option, visit
from redrive.cli.covered import covered_payload
from redrive.cli.output import clean, on_terminal, raw_output, say, write
from redrive.office.doors import show_body

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Print the payload of a letter, or of any item.

\b
Examples:
  redrive letters payload k3v9q2ma
  redrive letters payload k3v9q2ma --raw > payload.json

JSON is indented, and what its names or looks call a secret is covered. Of a mailbox message it is the body, of a
receipt the receipt. --raw prints the stored bytes with all fields, secrets included.
ID may be any prefix of at least four characters that no other letter has.
"""


@click.command("payload", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@click.option("--raw", is_flag=True, help="The very bytes, with every secret in them.")
@store_option
@verbose_option
def payload(*, id: str, raw: bool, store: str) -> None:
    async def read(app: Redrive) -> tuple[bytes, str]:
        history = await app.letters.get(id)
        item = (history if raw else await show_body(store_of(app), history)).item
        return item.payload, item.flaw

    data, flaw = visit(store, read)
    if flaw:
        say(f"the payload cannot be used: {flaw}")
    if not raw:
        text, _ = covered_payload(data)
        write(clean(text, keep="\n"))
        return
    say("this is all of it, secrets included")
    if on_terminal():
        # What speaks to a terminal would speak to this one.
        write(clean(data.decode("utf-8", "backslashreplace"), keep="\n"))
        return
    with raw_output() as out:
        out.write(data)
