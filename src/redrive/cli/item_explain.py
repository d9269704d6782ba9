"""`redrive item explain`: why an item is where it is, what happens next, and who decided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_of, store_option, verbose_option, visit
from redrive.cli.output import bold, clean, iso, on_terminal, tabbed, write, write_json
from redrive.cli.policies import app_option, registry_of
from redrive.core.redact import redact_text

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.engine.registry import Registry
    from redrive.office.scene import Explanation

ABOUT = """Say why an item is not running (or why it is), what happens next and when, and who decided.

\b
Examples:
  redrive item explain k3v9q2ma
  redrive item explain k3v9q2ma --app tasks:app
  redrive item explain k3v9q2ma --json | jq -r '.why[].kind'

Reasons stand with the strongest first. With --app, or REDRIVE_APP, the policies of your code are known too: what
they say, and how many attempts there are. ID may be any prefix of at least four characters that no other item has.
In a pipe each line is a kind and a text, separated by a tab: state, each reason by its kind, policy, next, do.
"""


@click.command("explain", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@app_option
@json_option
@store_option
@verbose_option
def explain(*, id: str, target: str | None, as_json: bool, store: str) -> None:
    registry = None if target is None else registry_of(target)
    told = visit(store, lambda app: _ask(app, id, registry))
    if as_json:
        write_json(explanation_object(told))
    elif on_terminal():
        write(bold(clean(f"{told.id} of {told.queue} is {told.state}")))
        for kind, text in _lines(told):
            write(f"  {kind:<14}{clean(text)}")
    else:
        tabbed([("state", told.state), *_lines(told)])


async def _ask(app: Redrive, text: str, registry: Registry | None) -> Explanation:
    from redrive.office.explain import explain
    from redrive.office.scene import look

    item_id = await app.letters.resolve(text)
    if registry is None:
        return await app.explain(item_id)
    return explain(await look(store_of(app), item_id, registry.policy_of))  # with policies of another app


def _lines(told: Explanation) -> Iterator[tuple[str, str]]:
    for why in told.why:
        by = f" (decided by {why.by})" if why.by and why.by not in why.text else ""
        yield why.kind.replace("_", " "), f"{redact_text(why.text)}{by}"
    if told.policy:
        yield "policy", f"the next failure is judged by {redact_text(told.policy)}"
    at = "" if told.next_at is None else f" ({iso(told.next_at)})"
    yield "next", f"{told.next}{at}"
    for command in told.advice:
        yield "do", command


def explanation_object(told: Explanation) -> dict[str, Any]:
    return {
        "id": told.id,
        "queue": told.queue,
        "state": told.state,
        "summary": redact_text(told.summary),
        "why": [
            {
                "kind": why.kind,
                "text": redact_text(why.text),
                "by": why.by or None,
                "until": iso(why.until),
                "ids": list(why.ids),
            }
            for why in told.why
        ],
        "policy": redact_text(told.policy) or None,
        "next": told.next,
        "next_at": iso(told.next_at),
        "do": list(told.advice),
    }
