"""`redrive item edit`: replace the payload of a letter or a waiting item, with a revision of the previous one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redrive.cli.access import HELP_NAMES, json_option, store_of, store_option, verbose_option, visit
from redrive.cli.asking import can_ask
from redrive.cli.output import clean, say, write, write_json
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.item import History, Item

SAME = "the payload is the same; nothing was changed"
ABOUT = """Edit the payload of a dead letter or a waiting item. The previous payload is kept as a revision.

\b
Examples:
  redrive item edit k3v9q2ma --set currency='"EUR"' --reason 'the form left it out'
  redrive item edit k3v9q2ma --file order.json --revision 0 --reason INC-88
  redrive item edit k3v9q2ma --reason 'by hand'

--set replaces or adds one value of a JSON payload, as in lines.0.price=12; it may be repeated. --file reads the whole
payload, - from stdin. With neither, $VISUAL or $EDITOR opens it. For a mailbox message it is the body, for a receipt
the receipt; with --raw a file is stored as it is, with all fields. Without --raw the new payload must be JSON.
--revision N edits only if the payload is at that revision, which `redrive item show` prints: no other edit is lost.
Without it, --set and the editor use the revision that they read. A running item cannot be edited.
ID may be any prefix of at least four characters that no other item has. Exit 6 if it was not edited.
"""


@click.command("edit", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@click.option("--set", "values", metavar="PATH=JSON", multiple=True, help="A value of the payload; may be repeated.")
@click.option("--file", "path", metavar="FILE", help="The new payload, - for stdin.")
@click.option("--raw", is_flag=True, help="Store the file as it is; it need not be JSON.")
@click.option("--revision", metavar="N", type=click.IntRange(min=0), help="Edit only if it is at this revision.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept with the previous payload.")
@click.option("--request", metavar="ID", help="Request id: a repeated edit adds no second revision.")
@json_option
@store_option
@verbose_option
def edit(
    *,
    id: str,
    values: tuple[str, ...],
    path: str | None,
    raw: bool,
    revision: int | None,
    reason: str,
    request: str | None,
    as_json: bool,
    store: str,
) -> None:
    context = click.get_current_context()
    if values and path is not None:
        raise click.UsageError("give --set or --file, one of the two", ctx=context)
    if raw and path is None:
        raise click.UsageError("--raw needs --file", ctx=context)
    made = None if path is None else _read(path, raw=raw)
    changes = [_change(each) for each in values]
    if made is None and not changes and not can_ask():
        hint = "give --set PATH=JSON or --file FILE"
        raise ConfigError("there is no terminal for an editor", field="payload", hint=hint)

    async def look(app: Redrive) -> Item:
        from redrive.cli.letter import read
        from redrive.office.encryption import check_key

        item = (await read(app, id))[0].item
        check_key(store_of(app), item)
        return item

    expected = revision
    if made is None:
        item = visit(store, look)
        expected = item.revision if revision is None else revision
        made = _with(item, changes) if changes else _typed(item)
        if made == item.payload:
            say(SAME)
            return
    payload = made

    async def act(app: Redrive) -> tuple[History, Item]:
        before = await app.letters.get(id)
        done = await app.edit(before.item.id, payload, revision=expected, raw=raw, reason=reason, request_id=request)
        return before, done

    before, done = visit(store, act)
    _report(before, done, request, as_json=as_json)


def _report(before: History, done: Item, request: str | None, *, as_json: bool) -> None:
    if as_json:
        write_json({"id": done.id, "revision": done.revision})
    elif done.revision != before.item.revision:
        write(clean(f"{done.id} is at revision {done.revision}"))
    elif request in [deed.request_id for deed in before.deeds if deed.change == "edit"]:
        say(clean(f"already done by this request; {done.id} is at revision {done.revision}"))
    else:
        say(SAME)


def _read(path: str, *, raw: bool) -> bytes:
    try:
        body = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field="--file") from None
    if not raw:
        _load(body.strip(), "--file")
    return body if raw else body.strip()


def _load(body: bytes, field: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON: {error}", field=field, hint="--file with --raw stores any bytes") from None


def _change(text: str) -> tuple[list[str], Any]:
    path, sign, value = text.partition("=")
    if not sign or not path or not all(path.split(".")):
        raise ConfigError(f"{text!r} is not PATH=JSON", field="--set", hint="as in lines.0.price=12")
    try:
        return path.split("."), msgspec.json.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        hint = f"quote a text for JSON as well, as in {path}='\"{value}\"'"
        raise ConfigError(f"{value!r} is not JSON", field="--set", hint=hint) from None


def _with(item: Item, changes: list[tuple[list[str], Any]]) -> bytes:
    body = _load(item.payload, "payload")
    for path, value in changes:
        body = _put(body, path, value, ".".join(path))
    return msgspec.json.encode(body)


def _put(body: Any, path: list[str], value: Any, whole: str) -> Any:
    """The body with the value at the path: a key of an object, also a new one, or an existing index of a list."""
    if not path:
        return value
    first, *rest = path
    if isinstance(body, dict) and (first in body or not rest):
        return {**body, first: _put(body.get(first), rest, value, whole)}
    if isinstance(body, list) and first.isdecimal() and int(first) < len(body):
        at = int(first)
        return [*body[:at], _put(body[at], rest, value, whole), *body[at + 1 :]]
    raise ConfigError(f"the payload has no {whole!r} ({first!r} is missing)", field="--set", hint="redrive item show")


def _typed(item: Item) -> bytes:
    """The payload as saved in the editor."""
    text = (
        msgspec.json.format(item.payload, indent=2).decode() if not item.flaw else item.payload.decode(errors="replace")
    )
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    try:
        found = click.edit(text, editor=editor, extension=".json")
    except click.ClickException as error:
        raise ConfigError(error.message, field="EDITOR") from None
    if found is None or found.strip() == text.strip():
        return item.payload
    body = found.strip().encode()
    _load(body, "payload")
    return bytes(msgspec.json.format(body, indent=-1))
