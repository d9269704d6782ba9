"""`redrive mailbox …`: what mailboxes hold; send, receive and purge from the shell."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from redrive.cli.access import (
    HELP_NAMES,
    json_option,
    reason_option,
    settings,
    store_of,
    store_option,
    verbose_option,
    visit,
    yes_option,
)
from redrive.cli.asking import confirm
from redrive.cli.output import MISSING, brief, clean, counted, iso, say, write, write_json
from redrive.cli.queue_push import SAYABLE, read_json, read_stdin
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.core import durations, typed_codec
from redrive.core.verbs import QueueTally
from redrive.engine.registry import unknown_queue
from redrive.errors import ConfigError, InvalidParameterError, PayloadTooLarge, SerializationError
from redrive.office.doors import doors
from redrive.office.said import check_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redrive.app import Redrive
    from redrive.mailboxes import StoreMailbox

mailbox = LazyGroup(
    "mailbox",
    {
        "list": "redrive.cli.mailbox:list_mailboxes",
        "show": "redrive.cli.mailbox:show",
        "send": "redrive.cli.mailbox:send",
        "receive": "redrive.cli.mailbox:receive",
        "purge": "redrive.cli.mailbox:purge",
    },
    help="""Mailboxes: what they hold; send, receive and purge.

\b
Examples:
  redrive mailbox list
  redrive mailbox send requests '{"question": "why"}'
  redrive mailbox receive requests --max 5
  redrive mailbox receive requests --acknowledge
  redrive mailbox purge requests --reason 'sent by mistake'
""",
)
LIST_THEM = "list them with redrive mailbox list"
LONGEST_WAIT = 20_000
TYPED = {"name": "MAILBOX", "reply_to": "--reply-to", "attributes": "--attribute", "delay": "--in", "ttl": "--ttl"}
"""Arguments and options by the parameter of a mailbox that they set."""
ABOUT_LIST = """List the mailboxes with their counts.

\b
Examples:
  redrive mailbox list
  redrive mailbox list --json | jq '.[] | select(.dead_letters > 0)'

In a pipe the columns are MAILBOX WAITING RECEIVED LETTERS OLDEST, separated by tabs. RECEIVED are in somebody's hands,
LETTERS are dead letters that a mailbox of this name shows.
"""
ABOUT_SHOW = """Show one mailbox: its counts, and who receives from it.

\b
Examples:
  redrive mailbox show requests
  redrive mailbox show requests --json | jq .dead_letters
"""
ABOUT_SEND = """Send a message. Prints its id.

\b
Examples:
  redrive mailbox send requests '{"question": "why"}'
  redrive mailbox send requests '{"question": "why"}' --reply-to answers --in 5m
  jq -c '.[]' questions.json | redrive mailbox send requests - --lines

BODY is JSON; - reads it from stdin, with --lines one body a line, all or none. The mailbox must exist, or say --new.
"""
ABOUT_RECEIVE = """Receive messages and print them, one JSON object a line.

\b
Examples:
  redrive mailbox receive requests --max 5
  redrive mailbox receive requests --acknowledge --wait 20s | jq .body

Without --acknowledge they are given back at once, and that delivery does not count. With it they are acknowledged after
they were printed: what a killed command has printed may come again. Dead letters of the mailbox are received too.
"""
ABOUT_PURGE = """Cancel all messages that wait, and move the dead letters of the mailbox to the trash.

\b
Examples:
  redrive mailbox purge requests --reason 'sent by mistake'
  redrive mailbox purge requests --yes --reason 'the provider is gone'

Messages in somebody's hands are left to them. Letters in the trash can be restored: redrive letters restore.
"""


class Row(Struct, frozen=True):
    name: str
    waiting: int
    received: int
    letters: int
    oldest: int | None
    workers: tuple[str, ...]

    @property
    def line(self) -> list[str]:
        oldest = MISSING if self.oldest is None else brief(self.oldest)
        return [self.name, f"{self.waiting}", f"{self.received}", f"{self.letters}", oldest]

    def as_object(self) -> dict[str, object]:
        return {
            "mailbox": self.name,
            "waiting": self.waiting,
            "received": self.received,
            "dead_letters": self.letters,
            "oldest_seconds": None if self.oldest is None else self.oldest / 1000,
            "workers": list(self.workers),
        }


async def _rows(app: Redrive) -> list[Row]:
    """A mailbox that has never held anything has no counts."""
    tally, workers = await app.tally(), await app.workers()
    letters = {route.route: route.open for route in tally.routes}
    queues = {row.queue: row for row in tally.queues}
    names = sorted(queue for queue, door in (await doors(store_of(app))).items() if door == "mailboxes")
    rows = [queues.get(name, QueueTally(name)) for name in names]
    return [
        Row(
            row.queue,
            row.ready + row.held,
            row.leased,
            letters.get(row.queue, 0),
            None if row.oldest_due is None else max(0, tally.at - row.oldest_due),
            tuple(beat.worker for beat in workers if beat.alive and row.queue in beat.facts.queues),
        )
        for row in rows
    ]


def _row(rows: list[Row], name: str, fix: str = LIST_THEM) -> Row:
    """Raises UnknownQueue."""
    for row in rows:
        if row.name == name:
            return row
    raise unknown_queue(name, [row.name for row in rows], fix, what="mailbox")


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@store_option
@verbose_option
def list_mailboxes(*, shape: Shape, store: str) -> None:
    listing: Listing[Row] = Listing(
        key="mailbox",
        as_object=Row.as_object,
        table=lambda rows: (["MAILBOX", "WAITING", "RECEIVED", "LETTERS", "OLDEST"], [row.line for row in rows]),
        line=lambda row: row.line,
        none="no mailboxes yet",
        kind=Row,
    )
    show_list(listing, visit(store, _rows), shape)


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="MAILBOX")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    row = _row(visit(store, _rows), name)
    if as_json:
        write_json(row.as_object())
        return
    facts = zip(("waiting", "received", "dead letters", "oldest"), row.line[1:], strict=True)
    show_facts(f"mailbox {name}", [*facts, ("workers", ", ".join(row.workers) or MISSING)])


@click.command("send", help=ABOUT_SEND, context_settings=HELP_NAMES)
@click.argument("name", metavar="MAILBOX")
@click.argument("body", metavar="BODY | -")
@click.option("--lines", is_flag=True, help="Each line of stdin is a body.")
@click.option("--reply-to", metavar="MAILBOX", help="Where answers go.")
@click.option("--attribute", "attributes", metavar="NAME=TEXT", multiple=True, help="May be repeated.")
@click.option("--in", "delay", metavar="DURATION", default="0s", help="Not before this long from now, as in 5m.")
@click.option("--ttl", metavar="DURATION", help="Not received after this long, as in 1d.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), default="normal", show_default=True)
@click.option("--new", is_flag=True, help="Also if there is no such mailbox yet.")
@store_option
@verbose_option
def send(
    *,
    name: str,
    body: str,
    lines: bool,
    reply_to: str | None,
    attributes: tuple[str, ...],
    delay: str,
    ttl: str | None,
    priority: Any,
    new: bool,
    store: str,
) -> None:
    bodies = _bodies(body, lines=lines)
    given = dict(_attribute(each) for each in attributes)
    with _opened(name, store, new=new, fix="say --new if it is to be a new one") as box:
        sent = box.send_many(
            bodies,
            reply_to,
            attributes=given,
            priority=priority,
            delay=durations.parse(delay, field="--in") / 1000,
            ttl=None if ttl is None else durations.parse(ttl, field="--ttl") / 1000,
        )
    for key in sent:
        write(clean(key))


@click.command("receive", help=ABOUT_RECEIVE, context_settings=HELP_NAMES)
@click.argument("name", metavar="MAILBOX")
@click.option("--max", "most", type=click.IntRange(1, 10), default=1, show_default=True, help="At most so many.")
@click.option("--wait", metavar="DURATION", default="0s", help="For the first one, at most 20s.")
@click.option("--acknowledge", is_flag=True, help="They are done, and gone.")
@store_option
@verbose_option
def receive(*, name: str, most: int, wait: str, acknowledge: bool, store: str) -> None:
    from redrive.core.outcome import Release
    from redrive.mailboxes.boxes.message import StoreMessage

    millis = durations.parse(wait, field="--wait")
    if millis > LONGEST_WAIT:
        raise ConfigError(f"must be at most 20s, got {wait!r}", field="--wait", hint="use 0s to 20s, and repeat it")
    with _opened(name, store) as box:
        got = box.receive(max_messages=most, wait_time_seconds=millis / 1000)
        for message in got:
            write(json.dumps(_message(message), default=_plain, ensure_ascii=False))
        if acknowledge:
            lost = box.acknowledge_many(got)
            for key in lost:
                say(f"{key} was not acknowledged in time, and comes again")
        else:
            for message in got:
                if isinstance(message, StoreMessage):
                    message.settle(Release())
    if not got:
        say("nothing to receive")


@click.command("purge", help=ABOUT_PURGE, context_settings=HELP_NAMES)
@click.argument("name", metavar="MAILBOX")
@reason_option()
@yes_option
@store_option
@verbose_option
def purge(*, name: str, reason: str, yes: bool, store: str) -> None:
    why = check_reason(reason)
    row = _row(visit(store, _rows), name)
    messages = counted(row.waiting + row.letters, "message")
    confirm(f"{messages} would be cancelled or moved to the trash", f"Purge {messages}?", yes=yes)
    write(f"{visit(store, lambda app: _purge(app, name, why), acts=True)}")


async def _purge(app: Redrive, name: str, reason: str) -> int:
    from redrive.app.internals import parts_of
    from redrive.office import bulk

    return await bulk.purge(store_of(app), name, parts_of(app).actor, reason)


@contextmanager
def _opened(name: str, store: str, *, new: bool = False, fix: str = LIST_THEM) -> Iterator[StoreMailbox[Any, Any]]:
    """A mailbox that is there, by its name. Errors of its calls name the argument or option as it was typed."""
    from redrive.mailboxes import open_mailbox
    from redrive.mailboxes.validation import check_name

    try:
        check_name(name)
        rows = visit(store, _rows)
        if not new:
            _row(rows, name, fix)
        chosen = settings()
        with open_mailbox(name, store, keep=None, encryption=chosen.encryption_keys) as box:
            box.shared.release = chosen.release or ""
            yield box
    except InvalidParameterError as error:
        message = error.message.removeprefix(f"{error.field}: ")
        raise ConfigError(message, field=TYPED.get(error.field, error.field), hint=error.hint) from None


def _bodies(body: str, *, lines: bool) -> list[Any]:
    if not lines:
        return [_body(read_stdin() if body == "-" else body, "BODY")]
    if body != "-":
        raise click.UsageError("--lines reads stdin; give - as the body", ctx=click.get_current_context())
    return [_body(line, f"line {number}") for number, line in enumerate(read_stdin().split("\n"), 1) if line.strip()]


def _body(text: str, where: str) -> Any:
    value = read_json(text, where)
    try:
        typed_codec.dump(value)
    except SerializationError as error:
        hint = error.hint if isinstance(error.__cause__, PayloadTooLarge) else SAYABLE
        raise ConfigError(error.message, field=where, hint=hint) from None
    return value


def _attribute(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ConfigError(f"{text!r} has no name", field="--attribute", hint="use NAME=TEXT")
    return name, value


def _message(message: Any) -> dict[str, Any]:
    return {
        "id": message.id,
        "body": message.body,
        "attributes": dict(message.attributes),
        "delivery_count": message.delivery_count,
        "enqueued_at": _plain(message.enqueued_at),
        "reply_to": message.reply_to_name,
    }


def _plain(value: object) -> Any:
    """What JSON has no form for: a dead letter as an object, with its attempts; a time as in all other commands."""
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return iso(round(value.timestamp() * 1000)) if isinstance(value, datetime) else str(value)
