"""`redrive db keys | reencrypt`: counts of bodies by encryption key, and re-encryption with the current key."""

from __future__ import annotations

from typing import Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import say, tabbed, write_json
from redrive.core.verbs import Reencrypted

ABOUT_KEYS = """Count payloads and results by the key that they are encrypted with.

\b
Examples:
  redrive db keys
  redrive db keys --json | jq '.keys'

A key that is not in the list can be dropped. `-` counts plaintext bodies of encrypted queues: they were stored before
the queue was encrypted. Reads every item; needs no keys. In a pipe: KEY and BODIES, separated by tabs.
"""
ABOUT_REENCRYPT = """Re-encrypt payloads and results with the current key.

\b
Examples:
  redrive db reencrypt
  redrive db reencrypt --queue payments

It rewrites bodies with another key, and plaintext bodies of encrypted queues. Work goes on meanwhile; running items are
left: repeat the command when they have ended. Prints the counts of `db keys` afterwards.
"""

_queue = click.option("--queue", metavar="NAME", help="Only this queue.")


@click.command("keys", help=ABOUT_KEYS, context_settings=HELP_NAMES)
@_queue
@json_option
@store_option
@verbose_option
def keys(*, queue: str | None, as_json: bool, store: str) -> None:
    _show(visit(store, lambda app: app.reencrypt(queue, dry_run=True)), as_json=as_json)


@click.command("reencrypt", help=ABOUT_REENCRYPT, context_settings=HELP_NAMES)
@_queue
@json_option
@store_option
@verbose_option
def reencrypt(*, queue: str | None, as_json: bool, store: str) -> None:
    found = visit(store, lambda app: app.reencrypt(queue), acts=True)
    _show(found, as_json=as_json)
    running = f"; {found.running:,} of running items were left" if found.running else ""
    unreadable = f"; {found.unreadable:,} do not decrypt and were left" if found.unreadable else ""
    say(f"re-encrypted {found.rewritten:,}{running}{unreadable}")


def _show(found: Reencrypted, *, as_json: bool) -> None:
    if as_json:
        made: dict[str, Any] = {"keys": {one.key or "-": one.bodies for one in found.keys}}
        counts = {"rewritten": found.rewritten, "running": found.running, "unreadable": found.unreadable}
        write_json(made | counts)
    else:
        tabbed((one.key or "-", str(one.bodies)) for one in found.keys)
