"""`redrive queue …`: how queues stand, and what limits them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, bold, brief, clean, columns, on_terminal, say, tabbed, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.standing import Standing, fill, limits, read
from redrive.cli.status import note, queue_line, queue_object, table
from redrive.core.verbs import QueueTally
from redrive.engine.registry import unknown_queue

queue = LazyGroup(
    "queue",
    {
        "list": "redrive.cli.queue:list_queues",
        "show": "redrive.cli.queue:show",
        "set": "redrive.cli.queue_set:set_queue",
        "pause": "redrive.cli.queue_set:pause",
        "resume": "redrive.cli.queue_set:resume",
    },
    help="""Queues: how they stand, what limits them, pause and resume.

\b
Examples:
  redrive queue list
  redrive queue show emails
  redrive queue set emails --max-running 10 --rate 100/min --reason 'the mail server is slow'
  redrive queue pause emails --reason 'the mail server is down'
""",
)

ABOUT_LIST = """List the queues with their counts.

\b
Examples:
  redrive queue list
  redrive queue list --json | jq '.[] | select(.limits_reached != [])'

In a pipe the columns are QUEUE READY RUNNING DEAD ARCHIVED TRASH DONE CANCELLED OLDEST WORKERS HELD PARKED NOTE,
separated by tabs. HELD wait for other items, PARKED stand behind a dead one in a queue that parks.
"""
ABOUT_SHOW = """Show one queue: its counts, its limits, and which of them are reached.

\b
Examples:
  redrive queue show emails
  redrive queue show emails --json | jq .settings

In a pipe each line is a name and a value, separated by a tab; limits are named as `queue set` takes them.
"""


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@json_option
@store_option
@verbose_option
def list_queues(*, as_json: bool, store: str) -> None:
    standing = visit(store, read)
    if as_json:
        write_json([queue_object(standing, row) for row in standing.queues])
    elif on_terminal():
        columns(*table(standing, standing.queues))
        if not standing.queues:
            say("no queues yet")
    else:
        tabbed(queue_line(standing, row) for row in standing.queues)


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    standing, row = visit(store, lambda app: _read(app, name))
    if as_json:
        write_json(queue_object(standing, row))
    elif on_terminal():
        write(bold(f"queue {clean(name)}"))
        for word, value in _facts(standing, row):
            write(f"  {word:<13} {clean(value)}")
    else:
        tabbed(_facts(standing, row))


async def _read(app: Redrive, name: str) -> tuple[Standing, QueueTally]:
    standing = await read(app)
    return standing, row_of(standing.queues, name)


def row_of(queues: tuple[QueueTally, ...], name: str) -> QueueTally:
    """Raises UnknownQueue."""
    for row in queues:
        if row.queue == name:
            return row
    raise unknown_queue(name, [row.queue for row in queues], "list them with redrive queue list")


def _facts(standing: Standing, row: QueueTally) -> Iterator[tuple[str, str]]:
    due = standing.due_for(row)
    counts = {
        "ready": row.ready,
        "held": row.held,
        "parked": row.parked,
        "running": row.leased,
        "dead": row.open,
        "archived": row.archived,
        "trash": row.trash,
        "done": row.done,
        "cancelled": row.cancelled,
    }
    yield from ((word, str(count)) for word, count in counts.items())
    yield "oldest", MISSING if due is None else brief(due)
    yield "workers", str(standing.live()[row.queue])
    for word, value in limits(row.settings).items():
        yield word.replace("_", "-"), _with_use(row, word, value)
    yield "note", note(standing, row) or MISSING


def _with_use(row: QueueTally, word: str, value: str) -> str:
    used = {"max_running": row.leased, "capacity": fill(row)}
    return f"{value} ({used[word]} now)" if word in used and on_terminal() else value
