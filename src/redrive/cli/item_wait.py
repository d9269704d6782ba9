"""`redrive item wait`: wait for an item to end; its end decides the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import as_json as to_json
from redrive.cli.output import write, write_json
from redrive.core.item import short_id
from redrive.errors import WaitTimeout

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Wait for an item to end and print its result, as JSON.

\b
Examples:
  redrive item wait k3v9q2ma --timeout 10m
  redrive item wait "$(redrive queue push reports '{"month": 11}')" && echo done

Exit 0 when it is done, 1 when it is dead or was cancelled, 8 when the timeout comes first: it goes on then.
"""


@click.command("wait", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@click.option("--timeout", metavar="DURATION", help="No longer than this, as in 10m.")
@json_option
@store_option
@verbose_option
def wait(*, id: str, timeout: str | None, as_json: bool, store: str) -> None:
    from redrive.core import durations

    limit = None if timeout is None else durations.parse(timeout, field="--timeout")
    item_id, result = visit(store, lambda app: _wait(app, id, limit))
    if as_json:
        write_json({"id": item_id, "state": "done", "result": result})
    else:
        write(to_json(result, indent=None))


async def _wait(app: Redrive, text: str, limit: int | None) -> tuple[str, Any]:
    item_id = await app.letters.resolve(text)
    try:
        return item_id, await app.wait(item_id, timeout=None if limit is None else f"{limit}ms")
    except WaitTimeout as error:
        hint = f"it goes on; wait again, or see redrive item explain {short_id(item_id)}"
        raise WaitTimeout(error.message, hint=hint) from None
