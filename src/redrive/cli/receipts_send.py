"""`redrive receipts send`: deliver the receipts of a file."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.asking import Progress
from redrive.cli.exits import Exit
from redrive.cli.interrupts import Interrupts
from redrive.cli.output import MISSING, counted, say, tabbed, write_json
from redrive.cli.receipts_target import (
    check_endpoint,
    check_there,
    chosen,
    take_in,
    target_options,
    with_client,
)
from redrive.core.quantity import shown
from redrive.errors import ConfigError, Conflict, InvalidReceipt

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.item import Item
    from redrive.receipts.client import ReceiptClient
    from redrive.receipts.model import Receipt
    from redrive.receipts.settings import ReceiptSettings

ABOUT = """Deliver receipts. Each is durable before the first attempt, and retried until delivered or a dead letter.

\b
Examples:
  redrive receipts send receipt.json --endpoint https://broker.example
  redrive receipts send receipts.json --max-retries 1
  jq -c .receipt receipts.json | redrive receipts send - --transport http --endpoint https://hooks.example/receipts
  redrive receipts send --waiting

FILE is a receipt, an array of them, JSON lines, or a receipts.json; - reads stdin. All are checked first: if one
cannot be sent, none is. Receipts that wait in the queue are delivered too; --waiting delivers only them, and ends when
each that waited at the start has ended. Each keeps its own schedule and the attempts that it has left.

In a pipe the columns are ID LEASE STATUS RESULT, where RESULT is delivered, dead or superseded. After Ctrl-C the rest
stays durable, and the next client delivers it. Exit 9 if some were not delivered, 7 if the store fails. With --waiting
a superseded receipt is not a failure.
"""
AT_ONCE = 200
FAULTS = 20
SHAPE = "a receipt, an array of them, or JSON lines"


@dataclass(frozen=True)
class Sent:
    """A receipt that is to be delivered."""

    id: str
    lease_id: str
    status: str


Ended = tuple[Sent, str]


@click.command("send", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("file", metavar="FILE | -", required=False)
@click.option("--waiting", is_flag=True, help="Instead of FILE: receipts that wait for an attempt.")
@click.option("--max-retries", metavar="N", help="Attempts before it is a dead letter.  [default: 5]")
@click.option("--backoff-base", metavar="SECONDS", help="Waits are its powers.  [default: 2.0]")
@target_options
@json_option
@store_option
@verbose_option
def send(*, file: str | None, waiting: bool, as_json: bool, store: str, **target: str | None) -> int:
    if (file is None) is not waiting:
        text = "FILE and --waiting exclude each other" if waiting else "Missing argument 'FILE | -', or --waiting."
        raise click.UsageError(text, ctx=click.get_current_context())
    settings = chosen(**target)
    check_endpoint(settings)
    some = [] if file is None else _receipts(file, settings.tenant)
    # Before the client is opened, which begins to deliver at once.
    before = visit(store, lambda app: _waiting(app, settings, target["queue"])) if waiting else []

    async def ask(client: ReceiptClient) -> list[Ended]:
        await _check_runs(client.app, settings.queue)
        put = [Sent(await client.submit(receipt), receipt.lease_id, receipt.status) for receipt in some]
        return await _ended(client, put or before)

    ended = with_client(store, settings, ask, work=True, make=not waiting) if some or before else []
    return _report(ended, len(some or before) - len(ended), waiting=waiting, as_json=as_json)


async def _waiting(app: Redrive, settings: ReceiptSettings, named: str | None) -> list[Sent]:
    from redrive.app.internals import PAGE_LIMIT
    from redrive.core.filters import render
    from redrive.core.select import And, Match, Or
    from redrive.core.states import State
    from redrive.office.bites import pages

    await check_there(app, named)
    await take_in(app, settings)
    states = Or((Match("state", "=", State.READY), Match("state", "=", State.LEASED)))
    where = render(And((Match("queue", "=", settings.queue), states)))
    found = pages(lambda cursor: app.find(where, limit=PAGE_LIMIT, cursor=cursor))
    return [_sent(item) async for page in found for item in page][::-1]


def _sent(item: Item) -> Sent:
    """An item that is not a receipt ends as a dead letter."""
    from redrive.receipts.model import receipt_in

    receipt = receipt_in(item.payload)
    if receipt is None:
        return Sent(item.id, MISSING, MISSING)
    return Sent(item.id, receipt.lease_id, receipt.status)


async def _check_runs(app: Redrive, queue: str) -> None:
    """Raises Conflict if the queue is paused: the wait would not end."""
    row = (await app.tally(members=(queue,))).row(queue)
    if row.paused:
        why = f" by {row.paused_by}: {row.paused_reason}" if row.paused_by else ""
        raise Conflict(
            f"queue {queue} is paused{why}; nothing was sent", hint=f"redrive queue resume {shlex.quote(queue)}"
        )


async def _ended(client: ReceiptClient, some: list[Sent]) -> list[Ended]:
    """The result of each, without those that had none at an interrupt."""
    results: dict[str, str] = {}
    ids = list(dict.fromkeys(each.id for each in some))
    progress, room = Progress("sent", len(ids)), asyncio.Semaphore(AT_ONCE)

    async def wait(each: str) -> None:
        async with room:
            delivered = await client.wait(each)
            results[each] = "delivered" if delivered else await _why_not(client, each)
            progress.add()

    with Interrupts("stopping; what is not delivered stays durable") as interrupts:
        waits = [asyncio.create_task(wait(each)) for each in ids]
        watching = asyncio.create_task(_heard(interrupts))
        try:
            everything = asyncio.gather(*waits)
            either: set[asyncio.Future[Any]] = {everything, watching}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if everything.done():
                everything.result()
        finally:
            for task in (*waits, watching):
                task.cancel()
            await asyncio.gather(*waits, watching, return_exceptions=True)
    progress.end()
    return [(each, results[each.id]) for each in some if each.id in results]


async def _heard(interrupts: Interrupts) -> None:
    while not interrupts.heard:  # noqa: ASYNC110 - a signal's handler has no event to set
        await asyncio.sleep(0.1)


async def _why_not(client: ReceiptClient, item_id: str) -> str:
    state = (await client.app.get(item_id)).state
    return "superseded" if state == "cancelled" else str(state)


def _report(ended: list[Ended], left: int, *, waiting: bool, as_json: bool) -> int:
    counts = Counter(result for _, result in ended)
    delivered, superseded = counts["delivered"], counts["superseded"]
    rest = len(ended) - delivered - superseded
    if as_json:
        write_json({"receipts": [{**asdict(each), "result": result} for each, result in ended], "left": left})
    else:
        tabbed([each.id, each.lease_id, each.status, result] for each, result in ended)
        others = (("superseded", superseded), ("not delivered", rest))
        say(", ".join([f"delivered {delivered:,}", *(f"{word} {count:,}" for word, count in others if count)]))
    if left:
        durable = "it is" if left == 1 else "they are"
        say(f"interrupted: {counted(left, 'receipt')} not delivered yet; {durable} durable")
        return Exit.INTERRUPTED
    # A superseded receipt was not delivered, which is a failure for a file that was to be sent.
    return Exit.PARTLY if rest or (superseded and not waiting) else Exit.DONE


# -- the file ----------------------------------------------------------------------------------------------------------


def _receipts(file: str, tenant: str | None) -> list[Receipt]:
    from redrive.receipts.model import Receipt, check_sendable
    from redrive.receipts.receipts_json import TENANT

    found: list[Receipt] = []
    faults: list[str] = []
    for place, value in _values(file):
        inside = value["receipt"] if isinstance(value, dict) and isinstance(value.get("receipt"), dict) else value
        whose = tenant
        if isinstance(value, dict) and isinstance(inside, dict):
            whose = inside.get(TENANT) or value.get(TENANT) or tenant
            inside = {name: field for name, field in inside.items() if name != TENANT}
        try:
            if whose != tenant:
                raise InvalidReceipt((f"it belongs to tenant {shown(whose)}: use --tenant, or import and recover it",))
            found.append(check_sendable(Receipt.of(inside)))
        except InvalidReceipt as error:
            faults.append(f"{place}: {error.message}")
    for fault in faults[:FAULTS]:
        say(fault)
    if faults:
        raise ConfigError(
            f"{counted(len(faults), 'receipt')} cannot be sent; none was", field="FILE", hint="correct them"
        )
    if not found:
        hint = f"{SHAPE}; or use --waiting"
        raise ConfigError("the file contains no receipt", field="FILE", hint=hint)
    return found


def _values(file: str) -> Iterator[tuple[str, Any]]:
    """Each value with its position, for faults."""
    text = _text(file)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _lines(text)
        return
    if isinstance(whole, list):
        yield from ((f"entry {number}", value) for number, value in enumerate(whole, 1))
    else:
        yield "the receipt", whole


def _lines(text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"line {number} is not JSON", field="FILE", hint=SHAPE) from None


def _text(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        hint = "a file with receipts, or - for stdin"
        raise ConfigError(f"{file} cannot be read: {error.strerror}", field="FILE", hint=hint) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8", field="FILE", hint="JSON is written in UTF-8") from None
