"""`redrive item …`: any item, dead or alive."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from redrive.cli.access import (
    EVERY,
    HELP_NAMES,
    all_option,
    how_many,
    json_option,
    limit_option,
    since_option,
    store_option,
    verbose_option,
    visit,
)
from redrive.cli.output import MISSING, brief, clean, iso, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_ids, show_list
from redrive.cli.watch import look, watch_option

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.item import History, Instant, Item
    from redrive.office.scene import Explanation

T = TypeVar("T")
item = LazyGroup(
    "item",
    {
        "list": "redrive.cli.item:list_items",
        "show": "redrive.cli.item:show",
        "explain": "redrive.cli.item_explain:explain",
        "attempts": "redrive.cli.item_attempts:attempts",
        "wait": "redrive.cli.item_wait:wait",
        "cancel": "redrive.cli.item_cancel:cancel",
        "run": "redrive.cli.item_run:run",
        "run-now": "redrive.cli.item_waiting:run_now",
        "expire": "redrive.cli.item_waiting:expire",
        "park": "redrive.cli.item_waiting:park",
        "unpark": "redrive.cli.item_waiting:unpark",
        "edit": "redrive.cli.item_edit:edit",
        "set-policy": "redrive.cli.item_waiting:set_policy",
    },
    help="""Any item, dead or alive: find it, look at it, ask why it does not run, run it now, cancel it.

\b
Examples:
  redrive item list --where 'queue:emails state:ready'
  redrive item show k3v9q2ma
  redrive item explain k3v9q2ma
  redrive item cancel k3v9q2ma --reason 'ordered twice'
""",
)

ABOUT_LIST = """List items, last enqueued first.

\b
Examples:
  redrive item list --where 'queue:emails state:ready'
  redrive item list --where 'state:leased' --watch
  redrive item list --since 10m --json | jq -r '.items[].id'

Filters are those of `redrive help filters`. In a pipe the columns are ID QUEUE STATE ENQUEUED DUE ATTEMPTS WORKER HOLD
REASON, separated by tabs.
"""
ABOUT_SHOW = """Show an item: its state, what it waits for, its keys, each attempt, the payload and what operators did.

\b
Examples:
  redrive item show k3v9q2ma
  redrive item show k3v9q2ma --json | jq '.hold, .blocked_by'
  redrive item show k3v9q2ma --revision 0

--revision shows the payload as it was before that edit: 0 is the one that was enqueued.
ID may be any prefix of at least four characters that no other item has.
"""


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@click.option("--where", metavar="FILTER", default="", help="Which items, as in 'queue:emails state:ready'.")
@since_option("Enqueued within this time, as in 2h.")
@limit_option()
@all_option
@click.option("--cursor", metavar="C", help="Go on where an earlier list of the same ended.")
@list_options
@watch_option
@store_option
@verbose_option
def list_items(
    *,
    where: str,
    since: int | None,
    limit: int,
    every: bool,
    cursor: str | None,
    shape: Shape,
    watch: int | None,
    store: str,
) -> int:
    from redrive.core.durations import format as format_duration
    from redrive.core.filters import parse

    parse(where)  # a bad filter is said before the store is looked for, at the column where it was typed
    wanted = (
        where
        if since is None
        else f"({where}) age<{format_duration(since)}"
        if where.strip()
        else (f"age<{format_duration(since)}")
    )

    most = how_many(limit, every=every)

    async def ask(app: Redrive) -> Callable[[], None]:
        if shape.quiet:
            ids, more = await _find(app, wanted, most, cursor, lambda each: each.id)
            return partial(show_ids, ids, more, shape, "no items")
        found, more = await _find(app, wanted, most, cursor, lambda each: each)
        return partial(show_list, _listing((await app.tally(members=False)).at), found, shape, more=more)

    return look(store, ask, lambda draw: draw(), watch)


async def _find(
    app: Redrive, where: str, limit: int, cursor: str | None, kept: Callable[[Item], T]
) -> tuple[list[T], str | None]:
    """As many as asked for, however many pages that takes. `kept` of each: payloads of many need much room."""
    from redrive.stores.base import PAGE_LIMIT

    found: list[T] = []
    while True:
        page = await app.find(where, limit=min(limit - len(found), PAGE_LIMIT), cursor=cursor)
        found += [kept(each) for each in page]
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return found, cursor


def _listing(now: Instant) -> Listing[Item]:
    from redrive.cli.views import item_object
    from redrive.core.item import Item, short_id
    from redrive.office.scene import state_of

    def row(each: Item) -> list[str]:
        due = MISSING
        if state_of(each, now) in ("ready", "scheduled", "retrying"):
            due = f"in {brief(each.due_at - now)}" if each.due_at > now else f"{brief(now - each.due_at)} ago"
        age = f"{brief(now - each.enqueued_at)} ago"
        return [short_id(each.id), each.queue, state_of(each, now), age, due, str(each.attempt), _note(each)]

    def line(each: Item) -> list[str]:
        times = [iso(each.enqueued_at) or MISSING, iso(each.due_at) or MISSING]
        reason = each.letter.reason if each.letter else MISSING
        facts = [str(each.attempt), each.worker or MISSING, each.hold or MISSING, reason]
        return [each.id, each.queue, state_of(each, now), *times, *facts]

    header = ["ID", "QUEUE", "STATE", "ENQUEUED", "DUE", "ATTEMPTS", "NOTE"]
    return Listing(
        key="id",
        as_object=lambda each: item_object(each, now),
        table=lambda rows: (header, [row(each) for each in rows]),
        line=line,
        none="no items",
        inside="items",
        every=EVERY,
        kind=Item,
    )


def _note(each: Item) -> str:
    from redrive.core.states import State

    if each.state is State.LEASED:
        return f"on {each.worker}"
    if each.letter is not None:
        return f"{each.letter.reason}: {each.letter.failure.type}"
    return f"hold {each.hold}" if each.hold else ""


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@click.option("--revision", metavar="N", type=click.IntRange(min=0), help="An earlier payload, alone.")
@json_option
@store_option
@verbose_option
def show(*, id: str, revision: int | None, as_json: bool, store: str) -> None:
    from redrive.cli.letter import page
    from redrive.cli.views import history_object
    from redrive.core.redact import redact_text

    history, told, now = visit(store, lambda app: _read(app, id))
    if revision is not None:
        _show_revision(history, revision, as_json=as_json)
        return
    if as_json:
        write_json({**history_object(history), "explained": redact_text(told.summary)})
        return
    title, *lines = page(history, now)
    write(title)
    # Why it is where it is: the item alone does not know of a full route, a dead dependency or a paused queue.
    for why in told.why:
        if why.kind == "dead":
            continue  # the page of a letter has it anyway
        write(f"  {clean(redact_text(why.text))}")
    for line in lines:
        write(line)


def _show_revision(history: History, number: int, *, as_json: bool) -> None:
    from redrive.cli.covered import covered_payload
    from redrive.cli.views import revision_object
    from redrive.core.redact import redact_text
    from redrive.errors import NotFound

    item, found = history.item, [each for each in history.revisions if each.number == number]
    if not found:
        hint = f"earlier ones are 0 to {item.revision - 1}" if item.revision else "it was never edited"
        raise NotFound(f"{item.id} has no earlier payload {number}: it is at revision {item.revision}", hint=hint)
    if as_json:
        write_json(revision_object(found[0]))
        return
    edit = found[0]
    about = f"replaced {iso(edit.at)} by {edit.actor}: {edit.reason}"
    write(clean(redact_text(f"revision {number}, {about}")))
    if edit.flaw:
        write(clean(f"it cannot be used: {edit.flaw}"))
    write(clean(covered_payload(edit.payload)[0], keep="\n"))


async def _read(app: Redrive, text: str) -> tuple[History, Explanation, Instant]:
    from redrive.cli.letter import read

    history, now = await read(app, text)
    return history, await app.explain(history.item.id), now
