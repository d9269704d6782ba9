"""`redrive queue push`: enqueue from the shell."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import clean, say, write, write_json
from redrive.cli.queue import check_queue
from redrive.errors import ConfigError, PayloadError, PayloadTooLarge

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.app import Redrive
    from redrive.engine.ids import ItemId

ABOUT = """Enqueue an item. Prints its id.

\b
Examples:
  redrive queue push emails '{"to": "ann@example.com"}'
  redrive queue push payments '{"order": 123}' --key cust-9 --in 5m
  redrive queue push emails --var to=ann@example.com --var tries:=3 --dedupe welcome-ann
  jq -c '.[]' orders.json | redrive queue push payments - --lines

PAYLOAD is JSON, and null if it is left out; - reads it from stdin, with --lines one payload a line, all or none. --var
NAME=TEXT and NAME:=JSON make an object, or add to it. An item whose dedupe key is held is not added: the id of the one
that holds it is printed, and stderr says so. The queue must exist, or --new be said: a typo would be work for nobody.
"""
TOO_LARGE = "keep it elsewhere and push a reference to it, or raise max_payload in the settings"
SAYABLE = "JSON has no NaN and no infinity, and its texts are UTF-8"


@click.command("push", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.argument("payload", metavar="[PAYLOAD | -]", required=False)
@click.option("--var", "variables", metavar="NAME=TEXT", multiple=True, help="A field of the payload; NAME:=JSON too.")
@click.option("--lines", is_flag=True, help="Each line of stdin is a payload.")
@click.option("--in", "delay", metavar="DURATION", help="Not before this long from now, as in 5m.")
@click.option("--at", "when", metavar="TIME", help="Not before this time, as in 2027-01-31T08:00+01:00.")
@click.option("--priority", metavar="WORD", default="normal", show_default=True, help="high, normal or low.")
@click.option("--key", metavar="KEY", help="Order key: items of one key run one after the other.")
@click.option("--limit-key", metavar="KEY", help="What the queue's limit per key counts.")
@click.option("--dedupe", metavar="KEY", help="Not while a live item has this key.")
@click.option("--dedupe-window", metavar="DURATION", help="Nor for so long after that one was enqueued.")
@click.option("--after", metavar="ID", multiple=True, help="Not before this item is done; may be repeated.")
@click.option("--kind", metavar="KIND", help="Which handler of the queue it is for.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; may be repeated.")
@click.option("--trace", metavar="TRACEPARENT", help="The W3C trace context that it belongs to.")
@click.option("--schema", metavar="N", type=int, default=0, help="The version of the payload's schema.")
@click.option("--id", "item_id", metavar="ID", help="An id of your own: a repeat adds nothing.")
@click.option("--new", is_flag=True, help="Also if there is no such queue yet.")
@json_option
@store_option
@verbose_option
def push(
    *,
    name: str,
    payload: str | None,
    variables: tuple[str, ...],
    lines: bool,
    item_id: str | None,
    new: bool,
    as_json: bool,
    store: str,
    **said: Any,
) -> None:
    if item_id is not None and lines:
        raise click.UsageError("--id names one item, --lines are many", ctx=click.get_current_context())
    asks = _asks(**said)
    payloads = _payloads(payload, variables, lines=lines)
    try:
        pushed = visit(store, lambda app: _push(app, name, payloads, asks, item_id, new=new))
    except PayloadError as error:
        hint = TOO_LARGE if isinstance(error, PayloadTooLarge) else SAYABLE
        raise ConfigError(error.message, field="PAYLOAD", hint=hint) from None
    if as_json:
        told: list[dict[str, object]] = [{"id": str(each), "duplicate": each.duplicate} for each in pushed]
        write_json(told if lines else told[0])
        return
    for each in pushed:
        write(clean(str(each)))
        if each.duplicate:
            say(f"{each} is there already; nothing was added")


async def _push(
    app: Redrive, name: str, payloads: list[Any], asks: dict[str, Any], item_id: str | None, *, new: bool
) -> list[ItemId]:
    if new:
        app.queue(name)
    else:
        await check_queue(app, name, "say --new if it is to be a new one")
    if len(payloads) == 1:
        return [await app.enqueue(name, payloads[0], id=item_id, **asks)]
    return await app.enqueue_many(name, payloads, **asks)


def _asks(
    *,
    delay: str | None,
    when: str | None,
    priority: str,
    key: str | None,
    limit_key: str | None,
    dedupe: str | None,
    dedupe_window: str | None,
    after: tuple[str, ...],
    kind: str | None,
    headers: tuple[str, ...],
    trace: str | None,
    schema: int,
) -> dict[str, Any]:
    """As `enqueue` takes them. Errors name the option as it was typed."""
    from redrive.core import durations

    if delay is not None and when is not None:
        raise click.UsageError("say --in or --at, not both", ctx=click.get_current_context())
    if dedupe_window is not None and dedupe is None:
        raise click.UsageError("--dedupe-window says nothing without --dedupe", ctx=click.get_current_context())
    wait = None if delay is None else f"{durations.parse(delay, field='--in')}ms"
    window = None if dedupe_window is None else f"{durations.parse(dedupe_window, field='--dedupe-window')}ms"
    return {
        "delay": wait,
        "at": None if when is None else _time(when),
        "priority": priority,
        "order_key": key,
        "limit_key": limit_key,
        "dedupe_key": dedupe,
        "dedupe_window": window,
        "after": after,
        "kind": kind,
        "headers": _headers(headers),
        "trace": trace,
        "schema": schema,
    }


def _headers(given: tuple[str, ...]) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for one in given:
        name, sign, text = one.partition("=")
        if not sign or not name:
            raise ConfigError(f"{one!r} names no header", field="--header", hint="write NAME=VALUE")
        if name in headers:
            raise ConfigError(f"{name!r} is there twice", field="--header", hint="give each name one value")
        headers[name] = text
    return headers or None


def _time(text: str) -> datetime:
    """UTC unless it says otherwise."""
    from datetime import UTC, datetime

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        hint = "use ISO 8601, such as 2027-01-31T08:00Z or 2027-01-31T08:00+01:00"
        raise ConfigError(f"{text!r} is not a time", field="--at", hint=hint) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _payloads(text: str | None, variables: tuple[str, ...], *, lines: bool) -> list[Any]:
    if lines:
        if text not in (None, "-"):
            raise click.UsageError("--lines reads stdin; leave the payload out", ctx=click.get_current_context())
        given = enumerate(read_stdin().split("\n"), 1)
        read = [read_json(line, f"line {number}") for number, line in given if line.strip()]
        if not read:
            raise ConfigError("there is no line", field="stdin", hint="one payload a line, as JSON")
        return [_with(value, variables) for value in read]
    body = None if text is None else read_json(read_stdin() if text == "-" else text, "PAYLOAD")
    return [_with(body, variables)]


def read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        said = f"it is not UTF-8: byte {error.start + 1:,} of what was read is {error.object[error.start]:#04x}"
        raise ConfigError(said, field="stdin", hint="JSON is written in UTF-8") from None


def read_json(text: str, where: str) -> Any:
    """`where` names the text in an error: the argument, or the line of the input, as in "line 2"."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        told = ""
        if isinstance(error, json.JSONDecodeError):
            line = "" if where.startswith("line ") else f"line {error.lineno} "
            told = f"{line}column {error.colno}: {error.msg}"
        hint = (
            f"a text needs quotes: '\"{text.strip()}\"'" if text.strip().isalnum() else "quote it for the shell: '{…}'"
        )
        raise ConfigError(f"it is not JSON{': ' * bool(told)}{told}", field=where, hint=hint) from None


def _with(value: Any, variables: tuple[str, ...]) -> Any:
    if not variables:
        return value
    if value is not None and not isinstance(value, dict):
        raise ConfigError("it can only be added to an object", field="--var", hint="leave the payload out, or give {…}")
    merged = dict(value or {})
    for variable in variables:
        name, sign, text = variable.partition("=")
        if not sign or not name.rstrip(":"):
            raise ConfigError(f"{variable!r} names no field", field="--var", hint="write NAME=TEXT or NAME:=JSON")
        merged[name.removesuffix(":")] = read_json(text, f"--var {name}") if name.endswith(":") else text
    return merged
