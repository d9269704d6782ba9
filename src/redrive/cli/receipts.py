"""`redrive receipts …`: results that could not be delivered, and the way to deliver them after all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import (
    EVERY,
    HELP_NAMES,
    all_option,
    how_many,
    json_option,
    limit_option,
    store_option,
    verbose_option,
    visit,
)
from redrive.cli.output import bold, brief, clean, iso, write, write_json
from redrive.cli.receipts_target import (
    check_there,
    chosen,
    queue_option,
    say_waiting,
    take_in,
    tenant_option,
)
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.item import History, Instant, short_id
from redrive.core.redact import redact, redact_text
from redrive.errors import NotFound

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.app import Redrive
    from redrive.receipts.dead_receipts import DeadReceipt
    from redrive.receipts.settings import ReceiptSettings

receipts = LazyGroup(
    "receipts",
    {
        "list": "redrive.cli.receipts:list_receipts",
        "show": "redrive.cli.receipts:show",
        "send": "redrive.cli.receipts_send:send",
        "recover": "redrive.cli.receipts_recover:recover_receipts",
        "export": "redrive.cli.receipts_files:export",
        "import": "redrive.cli.receipts_files:import_receipts",
        "alerts": "redrive.cli.receipts:alerts",
    },
    help="""Receipts: results for a broker, delivered for certain or kept until it is back.

\b
Examples:
  redrive receipts list
  redrive receipts recover --endpoint https://broker.example --dry-run
  redrive receipts recover --endpoint https://broker.example
  redrive receipts import /var/lib/cognigate/dlq/receipts.json
""",
)

ABOUT_LIST = """List receipts that could not be delivered, last failed first.

\b
Examples:
  redrive receipts list
  redrive receipts list --json | jq -r '.receipts[].receipt.lease_id'
  redrive receipts list --all -q

In a pipe the columns are ID LEASE TASK STATUS FAILED ATTEMPTS ERROR. Receipts that wait for an attempt are
only counted (in JSON as `waiting`): `redrive receipts send --waiting` delivers them. A receipts.json that the settings
name is imported first.

ERROR is the last error: that of a recovery, else that of the attempt that made it a dead letter. In JSON `error` is
that of the attempt, and `last_error` that of a recovery at `tried_at`.
"""
ABOUT_SHOW = """Show a receipt that could not be delivered: its fields, each attempt, and why it failed.

\b
Examples:
  redrive receipts show k3v9q2ma
  redrive receipts show abc-123 --json | jq .receipt

ID is its id, a prefix of at least four characters, or its lease id if only one has it; --tenant chooses one
of several tenants. Secrets are redacted.
"""
ABOUT_ALERTS = """Print a rule file for Prometheus: more than 10 dead receipts for 15 minutes.

\b
Examples:
  redrive receipts alerts > redrive-receipts.rules.yml
  redrive receipts alerts --prefix cognigate
"""
HEADER = ["ID", "LEASE", "TASK", "STATUS", "FAILED", "ATTEMPTS", "ERROR"]


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@limit_option(100)
@all_option
@click.option("--cursor", metavar="C", help="Go on where an earlier list ended.")
@queue_option
@list_options
@watch_option
@store_option
@verbose_option
def list_receipts(
    *, limit: int, every: bool, cursor: str | None, queue: str | None, shape: Shape, watch: int | None, store: str
) -> int:
    settings = chosen(queue=queue)
    most = how_many(limit, every=every)

    async def ask(app: Redrive) -> Callable[[], None]:
        await check_there(app, queue)
        await take_in(app, settings)
        found, more = await _found(app, settings.queue, most, cursor)
        tally = await app.tally(members=(settings.queue,))
        waiting = tally.row(settings.queue).live

        def draw() -> None:
            _draw(found, more, tally.at, shape, waiting)
            if not shape.json:
                say_waiting(waiting, settings.queue)

        return draw

    return look(store, ask, lambda draw: draw(), watch)


async def _found(app: Redrive, queue: str, most: int, cursor: str | None) -> tuple[list[DeadReceipt], str | None]:
    from redrive.app.internals import PAGE_LIMIT
    from redrive.office.in_place import last_attempts
    from redrive.receipts.dead_receipts import dead_receipt, letters_of

    found: list[DeadReceipt] = []
    while True:
        page = await app.letters.find(letters_of(queue), limit=min(most - len(found), PAGE_LIMIT), cursor=cursor)
        last = await last_attempts(page, app.history)
        found += [each for item in page if (each := dead_receipt(item, last.get(item.id))) is not None]
        cursor = page.next
        if cursor is None or len(found) >= most:
            return found, cursor


def _draw(found: Sequence[DeadReceipt], more: str | None, now: Instant, shape: Shape, waiting: int) -> None:
    listing: Listing[DeadReceipt] = Listing(
        key="id",
        as_object=receipt_object,
        table=lambda rows: (HEADER, [_row(each, now) for each in rows]),
        line=_line,
        none="no dead receipts",
        inside="receipts",
        every=EVERY,
        kind=_any,
    )
    show_list(listing, found, shape, more=more, beside={"waiting": waiting})


def _any() -> DeadReceipt:
    """A valid one, for the names of its fields."""
    from datetime import UTC, datetime

    from redrive.receipts.dead_receipts import DeadReceipt
    from redrive.receipts.model import Receipt

    receipt = Receipt(lease_id="-", task_id="-", worker_id="-", status="complete")
    return DeadReceipt("", receipt, datetime.now(UTC), 0, "")


def receipt_object(dead: DeadReceipt) -> dict[str, Any]:
    return {
        "id": dead.id,
        "receipt": redact(dead.receipt.to_dict()),
        "failed_at": iso(_millis(dead.failed_at)),
        "attempts": dead.attempts,
        "error": redact_text(dead.error),
        "last_error": redact_text(dead.last_error) or None,
        "tried_at": None if dead.tried_at is None else iso(_millis(dead.tried_at)),
        "tenant_id": dead.tenant_id,
    }


def _millis(at: datetime) -> Instant:
    return round(at.timestamp() * 1000)


def _row(dead: DeadReceipt, now: Instant) -> list[str]:
    return [short_id(dead.id), *_said(dead), f"{brief(now - _millis(dead.failed_at))} ago", *_end(dead)]


def _line(dead: DeadReceipt) -> list[str]:
    return [dead.id, *_said(dead), iso(_millis(dead.failed_at)) or "", *_end(dead)]


def _said(dead: DeadReceipt) -> list[str]:
    receipt = dead.receipt
    return [redact_text(receipt.lease_id), redact_text(receipt.task_id), receipt.status]


def _end(dead: DeadReceipt) -> list[str]:
    """The last error is that of a recovery, if there was one."""
    return [str(dead.attempts), redact_text(dead.last_error or dead.error)]


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@queue_option
@tenant_option
@json_option
@store_option
@verbose_option
def show(*, id: str, queue: str | None, tenant: str | None, as_json: bool, store: str) -> None:
    settings = chosen(queue=queue, tenant=tenant)

    async def ask(app: Redrive) -> tuple[History, Instant]:
        await check_there(app, queue)
        return await _history(app, settings, id), (await app.tally(members=False)).at

    history, now = visit(store, ask)
    if as_json:
        write_json(_history_object(history))
        return
    for line in _page(history, now):
        write(line)


async def _history(app: Redrive, settings: ReceiptSettings, key: str) -> History:
    queue = await take_in(app, settings)
    try:
        return await app.letters.get(key)
    except NotFound as error:
        those = [each for each in await queue.get_all() if each.receipt.lease_id == key]
        if len(those) > 1 and settings.tenant is not None:
            those = [each for each in those if each.tenant_id == settings.tenant] or those
        ids = [each.id for each in those]
        if not ids:
            hint = "list them with redrive receipts list" if "fits" not in error.message else error.hint
            raise NotFound(error.message.replace("no item", "no receipt"), hint=hint) from None
        if len(ids) > 1:
            hint = f"name one of {', '.join(ids)}"
            raise NotFound(f"lease {key!r} has {len(ids)} receipts", hint=hint) from None
        return await app.letters.get(ids[0])


def _history_object(history: History) -> dict[str, Any]:
    from redrive.cli.views import history_object
    from redrive.office.in_place import last_attempt
    from redrive.receipts.dead_receipts import dead_receipt

    dead = dead_receipt(history.item, last_attempt(history))
    whole = history_object(history)
    return whole if dead is None else {**receipt_object(dead), "state": whole["state"], "history": whole["history"]}


def _page(history: History, now: Instant) -> Iterator[str]:
    from redrive.cli.letter import page
    from redrive.receipts.dead_receipts import dead_receipt

    dead = dead_receipt(history.item)
    if dead is not None:
        status = f"{dead.receipt.status} of lease {dead.receipt.lease_id}, task {dead.receipt.task_id}"
        yield bold(clean(f"receipt {redact_text(status)}"))
    yield from page(history, now)


@click.command("alerts", help=ABOUT_ALERTS, context_settings=HELP_NAMES)
@click.option("--prefix", metavar="NAME", default="redrive", show_default=True, help="What the metrics begin with.")
@verbose_option
def alerts(*, prefix: str) -> None:
    from redrive.receipts.metrics import alert_rules

    write(alert_rules(prefix).rstrip("\n"))
