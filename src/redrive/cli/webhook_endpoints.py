"""`redrive webhook endpoint list` and `show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct, structs

from redrive.cli.access import visit
from redrive.cli.output import MISSING, brief, iso, seconds, write_json
from redrive.cli.tables import Shape, show_facts
from redrive.cli.webhook_access import command, endpoints_by_settings, show_rows, stamp
from redrive.core.redact import redact, redact_text
from redrive.core.verbs import QueueTally
from redrive.net.verification import Verification
from redrive.webhooks.endpoints import EndpointStats
from redrive.webhooks.model import Endpoint, webhook_of

if TYPE_CHECKING:
    from redrive.app import Redrive

DURATIONS = ("timeout", "max_age", "disable_after")
INSTANTS = ("status_since", "failing_since", "failed_at", "created_at", "updated_at")
LABELS = {"failed_at": "last failure noted at"}
"""Where the name says too little: it is noted hourly."""
ABOUT_LIST = """List the endpoints.

\b
Examples:
  redrive webhook endpoint list
  redrive webhook endpoint list --json | jq -r '.[] | select(.status != "active").id'

In a pipe the columns are ENDPOINT STATUS VIA ORDER PENDING LETTERS URL, separated by tabs. LETTERS are failed and dead
webhooks that are not resolved.
"""
ABOUT_SHOW = """Show an endpoint: its settings, how its webhooks stand, and which of them holds up the others.

\b
Examples:
  redrive webhook endpoint show shop
  redrive webhook endpoint show shop --json | jq .blocked

Secrets are not shown, nor values of headers that look like one.
"""


class Row(Struct, frozen=True):
    endpoint: Endpoint
    queue: QueueTally

    @property
    def line(self) -> list[str]:
        each, counts = self.endpoint, [str(self.queue.live), str(self.queue.open)]
        return [each.id, each.status, each.via, each.order, *counts, redact_text(each.url) or MISSING]

    def as_object(self) -> dict[str, Any]:
        return {**endpoint_object(self.endpoint), "pending": self.queue.live, "letters": self.queue.open}


class Blocked(Struct, frozen=True):
    """The webhook that others wait for, how many these are, and why it is where it is."""

    by: str
    webhooks: int
    why: str


def endpoint_object(endpoint: Endpoint) -> dict[str, Any]:
    """Its settings, without its secrets."""
    given = structs.asdict(endpoint)
    verification = given.pop("verification")
    usual = structs.asdict(Verification(verification.provider))
    given |= {name: seconds(given[name]) for name in DURATIONS} | {name: iso(given[name] or None) for name in INSTANTS}
    return {
        **{name: value for name, value in given.items() if name not in ("sealed", "pauses")},
        "url": redact_text(endpoint.url) or None,
        "headers": redact(dict(endpoint.headers)),
        "provider": verification.provider,
        "verification": {name: each for name, each in structs.asdict(verification).items() if each != usual[name]},
        "has_secrets": bool(endpoint.sealed),
    }


@command("list", ABOUT_LIST, lists=True)
def list_endpoints(*, shape: Shape, store: str) -> None:
    endpoints = endpoints_by_settings()

    async def ask(app: Redrive) -> list[Row]:
        queues = {row.queue: row for row in (await app.tally()).queues}
        return [Row(each, queues.get(each.queue, QueueTally(each.queue))) for each in await endpoints(app).list()]

    header, none = "ENDPOINT STATUS VIA ORDER PENDING LETTERS URL", "no endpoints yet: redrive webhook endpoint create"
    show_rows(visit(store, ask), shape, header, lambda row: row.line, Row.as_object, key="id", none=none, kind=Row)


@command("show", ABOUT_SHOW, click.argument("id", metavar="ENDPOINT"))
def show(*, id: str, as_json: bool, store: str) -> None:
    endpoints = endpoints_by_settings()

    async def ask(app: Redrive) -> tuple[Endpoint, EndpointStats, str | None, Blocked | None]:
        found, stats = await endpoints(app).get(id), await endpoints(app).stats(id)
        states = {gate.name: str(gate.state) for gate in await app.gates()}
        return found, stats, states.get(found.queue) if found.breaker else None, await _blocked(app, found)

    endpoint, stats, breaker, blocked = visit(store, ask)
    counts = {**structs.asdict(stats), "oldest_pending_at": stamp(stats.oldest_pending_at)}
    told = {**{name: value for name, value in counts.items() if name != "endpoint_id"}, **endpoint_object(endpoint)}
    if as_json:
        write_json({**told, "breaker_is": breaker, "blocked": None if blocked is None else structs.asdict(blocked)})
    else:
        show_facts(f"endpoint {id}", _facts(told, endpoint, breaker, blocked))


async def _blocked(app: Redrive, endpoint: Endpoint) -> Blocked | None:
    """What the last one that came waits for, if it does."""
    page = await app.find(f"queue:{endpoint.queue} state:ready", limit=1) if endpoint.ordered else ()
    for item in page:
        for head in (await app.history(item.id)).blocked_by[:1]:
            first = webhook_of(await app.history(head))
            why = (await app.explain(head)).summary + (f" ({first.error_message})" if first.error_message else "")
            if first.status in ("failed", "dead_letter"):
                why += f"; replay or discard it: redrive webhook replay {head}, redrive letters discard {head}"
            row = (await app.tally(members=(endpoint.queue,))).row(endpoint.queue)
            return Blocked(head, row.held, redact_text(why))
    return None


def _facts(
    told: dict[str, Any], endpoint: Endpoint, breaker: str | None, blocked: Blocked | None
) -> Iterator[tuple[str, str]]:
    for name, value in told.items():
        if value is None or value in ("", [], (), {}) or value is False:
            continue
        if name == "success_rate":
            text = f"{value:.1%}"
        elif isinstance(value, dict):
            text = ", ".join(f"{key}={each}" for key, each in value.items())
        elif isinstance(value, list | tuple):
            text = ", ".join(map(str, value))
        else:
            text = brief(getattr(endpoint, name)) if name in DURATIONS else "yes" if value is True else str(value)
        yield LABELS.get(name, name.replace("_", " ")), text
    if breaker is not None:
        yield "breaker is", breaker
    if blocked is not None:
        yield "blocked", f"{blocked.by} holds up {blocked.webhooks:,}: {blocked.why}"
