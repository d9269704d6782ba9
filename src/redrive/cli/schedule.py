"""`redrive schedule …`: what recurs, and when it comes next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import (
    HELP_NAMES,
    dry_run_option,
    json_option,
    reason_option,
    store_option,
    verbose_option,
    visit,
    yes_option,
)
from redrive.cli.asking import confirm
from redrive.cli.output import MISSING, brief, clean, iso, say, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.item import Instant
from redrive.office.letters import check_reason
from redrive.office.schedules import ScheduleView

if TYPE_CHECKING:
    from redrive.app import Redrive

schedule = LazyGroup(
    "schedule",
    {
        "list": "redrive.cli.schedule:list_schedules",
        "show": "redrive.cli.schedule:show",
        "run": "redrive.cli.schedule:run",
        "pause": "redrive.cli.schedule:pause",
        "resume": "redrive.cli.schedule:resume",
        "remove": "redrive.cli.schedule:remove",
    },
    help="""Schedules: items that recur. They are declared in code, with app.schedule.

\b
Examples:
  redrive schedule list
  redrive schedule run nightly --reason 'the report was lost'
  redrive schedule pause nightly --reason 'no reports before the audit'
""",
)

ABOUT_LIST = """List the schedules with their last and next ticks.

\b
Examples:
  redrive schedule list
  redrive schedule list --json | jq '.[] | select(.paused)'

In a pipe the columns are SCHEDULE QUEUE NEXT LAST WHEN NOTE, separated by tabs.
"""
ABOUT_SHOW = """Show one schedule: when it comes, the item of its last tick, and what becomes of missed ones.

\b
Examples:
  redrive schedule show nightly
  redrive letters list --where 'id:nightly@*'
"""
ABOUT_RUN = """Enqueue the item of a schedule now, besides its ticks, also while it is paused. Prints the id.

\b
Examples:
  redrive schedule run nightly --reason 'the report was lost'
"""
ABOUT_PAUSE = """Make no more ticks until it is resumed; those that come meanwhile are not made up for.

\b
Examples:
  redrive schedule pause nightly --reason 'no reports before the audit'
"""
ABOUT_RESUME = """Go on with the next tick.

\b
Examples:
  redrive schedule resume nightly --reason 'the audit is over'
"""
ABOUT_REMOVE = """Remove a schedule for good. Its items stay.

\b
Examples:
  redrive schedule remove nightly --reason 'no longer in the code' --yes

One that an app still declares comes back when that app is opened: remove it from the code first, or pause it.
It asks first; without a terminal say --yes.
"""


HEADER = ["SCHEDULE", "QUEUE", "NEXT", "LAST", "WHEN", "NOTE"]


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@watch_option
@store_option
@verbose_option
def list_schedules(*, shape: Shape, watch: int | None, store: str) -> int:
    def draw(found: tuple[tuple[ScheduleView, ...], Instant]) -> None:
        views, now = found
        listing: Listing[ScheduleView] = Listing(
            key="schedule",
            as_object=_as_object,
            table=lambda rows: (HEADER, [_row(view, now) for view in rows]),
            line=_line,
            none="no schedules",
            kind=ScheduleView,
        )
        show_list(listing, views, shape)

    return look(store, _read, draw, watch)


async def _read(app: Redrive) -> tuple[tuple[ScheduleView, ...], Instant]:
    return await app.schedules.list(), (await app.tally(members=False)).at


def _row(view: ScheduleView, now: Instant) -> list[str]:
    coming = MISSING if view.next_at is None else f"in {brief(view.next_at - now)}"
    last = MISSING if view.last_at is None else f"{brief(now - view.last_at)} ago"
    return [view.name, view.queue, coming, last, view.when, "PAUSED" if view.paused else ""]


def _line(view: ScheduleView) -> list[str]:
    coming, last = iso(view.next_at) or MISSING, iso(view.last_at) or MISSING
    return [view.name, view.queue, coming, last, view.when, _note(view) or MISSING]


def _note(view: ScheduleView) -> str:
    return f"paused by {view.paused_by}: {view.paused_reason}" if view.paused else ""


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="SCHEDULE")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    view = visit(store, lambda app: app.schedules.get(name))
    if as_json:
        write_json(_as_object(view))
    else:
        show_facts(f"schedule {name}", _facts(view))


def _facts(view: ScheduleView) -> Iterator[tuple[str, str]]:
    yield "queue", view.queue
    yield "when", view.when
    yield "next", iso(view.next_at) or MISSING
    yield "last", iso(view.last_at) or MISSING
    yield "last item", view.last_item or MISSING
    yield "catch up", view.catch_up
    yield "priority", str(view.schedule.priority)
    yield "note", _note(view) or MISSING


def _as_object(view: ScheduleView) -> dict[str, Any]:
    return {
        "schedule": view.name,
        "queue": view.queue,
        "when": view.when,
        "next_at": iso(view.next_at),
        "last_at": iso(view.last_at),
        "last_item": view.last_item or None,
        "catch_up": view.catch_up,
        "priority": str(view.schedule.priority),
        "paused": view.paused,
        "paused_at": iso(view.paused_at),
        "paused_by": view.paused_by or None,
        "paused_reason": view.paused_reason or None,
    }


@click.command("run", help=ABOUT_RUN, context_settings=HELP_NAMES)
@click.argument("name", metavar="SCHEDULE")
@reason_option()
@json_option
@store_option
@verbose_option
def run(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    item_id = visit(store, lambda app: app.schedules.run(name, reason=why), acts=True)
    if as_json:
        write_json({"schedule": name, "item": item_id})
    else:
        write(clean(item_id))


@click.command("pause", help=ABOUT_PAUSE, context_settings=HELP_NAMES)
@click.argument("name", metavar="SCHEDULE")
@reason_option("Why; shown by schedule list, kept in the audit.")
@json_option
@store_option
@verbose_option
def pause(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    _changed(store, "paused", lambda app: app.schedules.pause(name, reason=why), as_json=as_json)


@click.command("resume", help=ABOUT_RESUME, context_settings=HELP_NAMES)
@click.argument("name", metavar="SCHEDULE")
@reason_option(default="resumed")
@json_option
@store_option
@verbose_option
def resume(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    _changed(store, "resumed", lambda app: app.schedules.resume(name, reason=why), as_json=as_json)


def _changed(store: str, word: str, act: Callable[[Redrive], Awaitable[ScheduleView]], *, as_json: bool) -> None:
    view = visit(store, act, acts=True)
    if as_json:
        write_json(_as_object(view))
    else:
        say(f"{word} {view.name}")


@click.command("remove", help=ABOUT_REMOVE, context_settings=HELP_NAMES)
@click.argument("name", metavar="SCHEDULE")
@reason_option()
@yes_option
@dry_run_option("Say what would be removed, and remove nothing.")
@json_option
@store_option
@verbose_option
def remove(*, name: str, reason: str, yes: bool, dry_run: bool, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    view = visit(store, lambda app: app.schedules.get(name))
    if not dry_run:
        confirm(f"schedule {name} ({view.when}) would be removed", f"Remove schedule {name} ({view.when})?", yes=yes)
        visit(store, lambda app: app.schedules.remove(name, reason=why), acts=True)
    if as_json:
        write_json({"dry_run": dry_run, "schedule": name, "removed": True})
    else:
        say(f"{'would remove' if dry_run else 'removed'} {name}")
