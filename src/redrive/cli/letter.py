"""`redrive letters show`: one letter with everything that happened to it."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, json_option, store_of, store_option, verbose_option, visit
from redrive.cli.covered import covered_payload, output_lines
from redrive.cli.output import bold, brief, clean, iso, red, write, write_json
from redrive.cli.views import history_object
from redrive.core import durations
from redrive.core.item import Attempt, Ending, Failure, Frame, History, Instant, Item, Priority, error_line
from redrive.core.redact import redact, redact_text
from redrive.core.states import State
from redrive.office.doors import show_body
from redrive.office.relations import relations

if TYPE_CHECKING:
    from redrive.app import Redrive

PAYLOAD_LIMIT = 4000
SOURCE_LIMIT = 4 * 1024 * 1024
ABOUT = """Show a letter: why it died, each attempt, the place of the last failure, the payload and what operators did.

\b
Examples:
  redrive letters show k3v9q2ma
  redrive letters show k3v9q2ma --json | jq .payload

ID may be any prefix of at least four characters that no other letter has.
"""


@click.command("show", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@json_option
@store_option
@verbose_option
def show(*, id: str, as_json: bool, store: str) -> None:
    history, now = visit(store, lambda app: read(app, id))
    if as_json:
        write_json(history_object(history))
        return
    for line in page(history, now):
        write(line)


async def read(app: Redrive, text: str) -> tuple[History, Instant]:
    history = await app.letters.get(text)
    return await show_body(store_of(app), history), (await app.tally(members=False)).at


def page(history: History, now: Instant) -> Iterator[str]:
    """The lines, harmless to a terminal whatever the letter holds."""
    item = history.item
    yield bold(f"{'letter' if item.letter else 'item'} {clean(item.id)}")
    for name, value in (*_header(history, now), *relations(history).describe()):
        yield f"  {name:<10}{clean(value)}"
    if history.attempts or history.omitted:
        yield ""
        yield bold("attempts")
        yield from _attempts(history)
    if item.letter and item.letter.failure.frames:
        yield ""
        yield bold("last failure, most recent call last")
        yield from _place(item.letter.failure.frames)
    yield ""
    if item.flaw:
        yield red(clean(f"the payload cannot be used: {item.flaw}"))
    yield from _payload(item.payload)
    if history.deeds:
        yield ""
        yield bold("what operators did")
        for deed in history.deeds:
            said = f"{iso(deed.at)}  {deed.change} by {deed.actor}: {deed.reason} (request {deed.request_id})"
            yield f"  {clean(redact_text(said))}"


def _header(history: History, now: Instant) -> Iterator[tuple[str, str]]:
    item, letter = history.item, history.item.letter
    yield "queue", item.queue
    yield "state", f"{item.state}, {letter.disposition}" if letter else str(item.state)
    if letter:
        yield "reason", letter.reason
        yield "died", _when(letter.died_at, now)
        if letter.route:
            yield "route", letter.route
    yield "enqueued", _when(item.enqueued_at, now)
    if item.state is State.READY:
        yield "due", _when(item.due_at, now)
    if item.lease_until is not None and (item.state is State.LEASED or item.lease_until > now):
        until = _when(item.lease_until, now)
        held_back = letter is not None and not item.worker
        yield "worker", f"nobody before {until}" if held_back else f"{item.worker or 'unknown'}, lease until {until}"
    if item.priority is not Priority.NORMAL:
        yield "priority", item.priority
    yield from _description(item)
    if item.tags:
        yield "tags", ", ".join(item.tags)
    counters: dict[str, object] = {"attempt": item.attempt, "errors": item.errors, "crashes": item.crashes}
    counters |= {"deliveries": _deliveries(history), "replays": item.replays}
    if history.revisions:
        edit = history.revisions[-1]
        yield (
            "revision",
            redact_text(f"{item.revision}, edited by {edit.actor} {brief(now - edit.at)} ago: {edit.reason}"),
        )
    yield "counters", ", ".join(f"{name} {count}" for name, count in counters.items())
    if letter:
        yield "cause", letter.failure.cause
        yield "error", _error(letter.failure)
        yield "class", _class(letter.failure)


def _description(item: Item) -> Iterator[tuple[str, str]]:
    """Nothing for most items."""
    named = {"kind": item.kind, "release": item.release, "trace": item.trace}
    yield from ((name, text) for name, text in named.items() if text)
    if item.schema:
        yield "schema", str(item.schema)
    for name, text in redact(item.headers).items():
        yield "header", f"{name}: {text}"


def _deliveries(history: History) -> str:
    """Each is a lease, and not always a try: of a letter that was lent out and let go there is nothing to read."""
    count = history.item.deliveries
    untold = count - len(history.attempts) - history.omitted
    return f"{count} ({untold} without a record)" if history.item.letter and untold > 0 else str(count)


def _when(at: Instant, now: Instant) -> str:
    return f"{iso(at)} ({brief(now - at)} ago)" if at <= now else f"{iso(at)} (in {brief(at - now)})"


def _error(failure: Failure) -> str:
    return error_line(failure.type, redact_text(failure.text))


def _class(failure: Failure) -> str:
    code = f", code {failure.code}" if failure.code else ""
    return f"category {failure.category}, rule {failure.rule}{code}"


def _attempts(history: History) -> Iterator[str]:
    last = 0
    for attempt in history.attempts:
        if history.omitted and last and attempt.delivery > last + 1:
            yield f"  … {history.omitted} attempts were left out of the middle of this history"
        last = attempt.delivery
        yield from _attempt(attempt)
        yield from (f"      {line}" for line in output_lines(attempt.output, history.item.id))


def _attempt(attempt: Attempt) -> Iterator[str]:
    # Nobody knows how long a lost worker worked.
    ran = "" if attempt.ending is Ending.CRASHED else f" after {durations.format(attempt.ran)}"
    which = f"attempt {attempt.number}, delivery {attempt.delivery}"
    by = f", release {attempt.release}" if attempt.release else ""
    yield clean(f"  {iso(attempt.started_at)}  {attempt.ending}{ran} on {attempt.worker} ({which}{by})")
    if attempt.failure:
        yield f"      {clean(_error(attempt.failure))}"
        yield f"      {clean(_class(attempt.failure))}, cause {clean(attempt.failure.cause)}"
    if attempt.note:
        yield f"      {clean(redact_text(attempt.note))}"


def _place(frames: tuple[Frame, ...]) -> Iterator[str]:
    for frame in frames:
        yield f"  {clean(frame.file)}:{frame.line} in {clean(frame.function)}"
        source = _source(frame)
        if source:
            yield f"      {clean(redact_text(source))}"


def _source(frame: Frame) -> str:
    """The line as it is in the file now, if there is such a file. A letter must not make us read a device or a pipe."""
    path = Path(frame.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > SOURCE_LIMIT:
            return ""
        return linecache.getline(frame.file, frame.line).strip()
    except (OSError, ValueError):
        return ""


def _payload(payload: bytes) -> Iterator[str]:
    text, form = covered_payload(payload)
    kind = "JSON"
    if form != "JSON":
        text, kind = redact_text(repr(payload[:PAYLOAD_LIMIT])), "not JSON, shown as Python would write it"
    yield bold(f"payload, {len(payload):,} bytes, {kind}")
    whole = len(text) <= PAYLOAD_LIMIT and (kind == "JSON" or len(payload) <= PAYLOAD_LIMIT)
    for line in text[:PAYLOAD_LIMIT].split("\n"):
        yield f"  {clean(line)}"
    if not whole:
        yield f"  … cut after {PAYLOAD_LIMIT:,} characters; --json has all of it"
