"""`redrive route …`: the labels under which letters lie, and how many each has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, json_option, reason_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, say, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.verbs import RouteTally
from redrive.errors import ConfigError
from redrive.office.letters import check_reason

if TYPE_CHECKING:
    from redrive.app import Redrive

route = LazyGroup(
    "route",
    {"list": "redrive.cli.route:list_routes", "set": "redrive.cli.route:set_route"},
    help="""Routes: the labels under which dead letters lie.

\b
Examples:
  redrive route list
  redrive route set network --capacity 10000 --reason 'more would not be read'
""",
)

ABOUT_LIST = """List the routes that have open letters or a capacity. Letters without a route are under -.

\b
Examples:
  redrive route list
  redrive route list --json | jq '.[] | select(.full)'

In a pipe the columns are ROUTE OPEN CAPACITY, separated by tabs. FULL: what would die into it stays live and waits.
"""
ABOUT_SET = """Say how many open letters a route has room for; `none` lifts it.

\b
Examples:
  redrive route set network --capacity 10000 --reason 'more would not be read'
  redrive route set network --capacity none --reason 'there is room again'

Nothing is ever evicted. What would die into a full route stays live, backs off, and is told in the log.
"""


def _line(row: RouteTally) -> list[str]:
    return [row.route or MISSING, str(row.open), _room(row)]


async def _read(app: Redrive) -> tuple[RouteTally, ...]:
    return (await app.tally(members=False)).routes


def _room(row: RouteTally) -> str:
    return MISSING if row.capacity is None else str(row.capacity)


def _full(row: RouteTally) -> bool:
    return row.capacity is not None and row.open >= row.capacity


def _as_object(row: RouteTally) -> dict[str, object]:
    return {"route": row.route, "open": row.open, "capacity": row.capacity, "full": _full(row)}


LISTING: Listing[RouteTally] = Listing(
    key="route",
    as_object=_as_object,
    table=lambda rows: (
        ["ROUTE", "OPEN", "CAPACITY", "NOTE"],
        [[*_line(row), "FULL" if _full(row) else ""] for row in rows],
    ),
    line=_line,
    none="no routes",
    kind=RouteTally,
)


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@watch_option
@store_option
@verbose_option
def list_routes(*, shape: Shape, watch: int | None, store: str) -> int:
    return look(store, _read, lambda routes: show_list(LISTING, routes, shape), watch)


@click.command("set", help=ABOUT_SET, context_settings=HELP_NAMES)
@click.argument("name", metavar="ROUTE")
@click.option("--capacity", metavar="N", required=True, help="Open letters it has room for, or none for no limit.")
@reason_option()
@json_option
@store_option
@verbose_option
def set_route(*, name: str, capacity: str, reason: str, as_json: bool, store: str) -> None:
    most, why = _capacity(capacity), check_reason(reason)

    async def act(app: Redrive) -> RouteTally:
        await app.configure_route(name, capacity=most, reason=why)
        rows = [row for row in (await app.tally(members=False)).routes if row.route == name]
        return rows[0] if rows else RouteTally(name)

    now = visit(store, act, acts=True)
    if as_json:
        write_json(_as_object(now))
    else:
        say(f"route {name} has {'no limit' if now.capacity is None else f'room for {now.capacity:,}'}")


def _capacity(text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    number = text.replace(",", "").replace("_", "")
    if not number.isdecimal() or int(number) < 1:
        hint = "use a whole number of at least 1, or none for no limit"
        raise ConfigError(f"{text!r} cannot be used", field="--capacity", hint=hint)
    return int(number)
