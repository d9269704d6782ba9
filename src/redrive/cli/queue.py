"""`redrive queue …`: how queues stand, and what limits them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, brief, on_terminal, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.status import limits, note, queue_line, queue_object, table
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.families import family_of, is_family, served
from redrive.core.verbs import QueueTally
from redrive.engine.registry import unknown_queue
from redrive.office.overview import Overview, QueueOverview

if TYPE_CHECKING:
    from redrive.app import Redrive

queue = LazyGroup(
    "queue",
    {
        "list": "redrive.cli.queue:list_queues",
        "show": "redrive.cli.queue:show",
        "push": "redrive.cli.queue_push:push",
        "retry": "redrive.cli.queue_letters:retry",
        "drop": "redrive.cli.queue_letters:drop",
        "set": "redrive.cli.queue_set:set_queue",
        "pause": "redrive.cli.queue_set:pause",
        "resume": "redrive.cli.queue_set:resume",
        "prune": "redrive.cli.queue_prune:prune",
    },
    help="""Queues: how they stand, what limits them, push, pause and resume.

\b
Examples:
  redrive queue list
  redrive queue show emails
  redrive queue push emails '{"to": "ann@example.com"}'
  redrive queue set emails --max-running 10 --rate 100/min --reason 'the mail server is slow'
  redrive queue pause emails --reason 'the mail server is down'
""",
)

ABOUT_LIST = """List the queues with their counts.

\b
Examples:
  redrive queue list
  redrive queue list --json | jq '.[] | select(.limits_reached != [])'

The members of a family, such as webhook:*, are one line; --members lists them.

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
@list_options
@click.option("--members", is_flag=True, help="One line for each member of a family, not one for the family.")
@watch_option
@store_option
@verbose_option
def list_queues(*, shape: Shape, members: bool, watch: int | None, store: str) -> int:
    def draw(view: Overview) -> None:
        listing: Listing[QueueOverview] = Listing(
            key="queue",
            as_object=queue_object,
            table=table,
            line=queue_line,
            none="no queues yet",
            kind=QueueOverview,
        )
        show_list(listing, view.queues, shape)

    return look(store, lambda app: app.overview(members=members), draw, watch)


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    row = visit(store, lambda app: _read(app, name))
    if as_json:
        write_json(queue_object(row))
    else:
        show_facts(f"queue {name}", _facts(row))


async def _read(app: Redrive, name: str) -> QueueOverview:
    queues = (await app.overview(members=not is_family(name))).queues
    found = row_of(tuple([row.tally for row in queues]), name)
    return next(row for row in queues if row.tally is found)


async def known_queue(app: Redrive, name: str) -> QueueTally:
    """Raises UnknownQueue. A member of a known family need not be there before, nor a family that has members."""
    tally = await app.tally()
    families = [row.queue for row in tally.families]
    if name in families or family_of(name) in families or any(family_of(row.queue) == name for row in tally.queues):
        return tally.row(name)
    return row_of((*tally.queues, *tally.families), name)


async def check_queue(app: Redrive, name: str, fix: str) -> None:
    """Raises UnknownQueue, with `fix` as its hint, if it is not there and no member of a known family."""
    known = [row.queue for row in (await app.tally(members=False)).queues]
    if not served(known, name):
        raise unknown_queue(name, known, fix)


def row_of(queues: tuple[QueueTally, ...], name: str) -> QueueTally:
    """Raises UnknownQueue."""
    for row in queues:
        if row.queue == name:
            return row
    raise unknown_queue(name, [row.queue for row in queues], "list them with redrive queue list")


def _facts(queue: QueueOverview) -> Iterator[tuple[str, str]]:
    row = queue.tally
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
    yield "oldest", MISSING if queue.oldest is None else brief(queue.oldest)
    yield "workers", str(queue.workers)
    for word, value in limits(row.settings).items():
        yield word.replace("_", "-"), _with_use(queue, word, value)
    yield "note", note(queue) or MISSING


def _with_use(queue: QueueOverview, word: str, value: str) -> str:
    used = {"max_running": queue.tally.leased, "capacity": queue.fill}
    return f"{value} ({used[word]} now)" if word in used and on_terminal() else value
