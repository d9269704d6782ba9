"""`redrive route …`: the labels under which letters lie, and how many each has room for."""

from __future__ import annotations

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, columns, on_terminal, say, tabbed, write_json
from redrive.cli.root import LazyGroup
from redrive.core.verbs import RouteTally
from redrive.errors import ConfigError
from redrive.office.letters import check_reason

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


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@json_option
@store_option
@verbose_option
def list_routes(*, as_json: bool, store: str) -> None:
    routes = visit(store, _read)
    if as_json:
        write_json([_as_object(row) for row in routes])
        return
    rows = [[row.route or MISSING, str(row.open), _room(row)] for row in routes]
    if on_terminal():
        notes = ["FULL" if _full(row) else "" for row in routes]
        columns(["ROUTE", "OPEN", "CAPACITY", "NOTE"], [[*row, note] for row, note in zip(rows, notes, strict=True)])
        if not rows:
            say("no routes")
    else:
        tabbed(rows)


async def _read(app: Redrive) -> tuple[RouteTally, ...]:
    return (await app.tally()).routes


def _room(row: RouteTally) -> str:
    return MISSING if row.capacity is None else str(row.capacity)


def _full(row: RouteTally) -> bool:
    return row.capacity is not None and row.open >= row.capacity


def _as_object(row: RouteTally) -> dict[str, object]:
    return {"route": row.route, "open": row.open, "capacity": row.capacity, "full": _full(row)}


@click.command("set", help=ABOUT_SET, context_settings=HELP_NAMES)
@click.argument("name", metavar="ROUTE")
@click.option("--capacity", metavar="N", required=True, help="Open letters it has room for, or none for no limit.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@json_option
@store_option
@verbose_option
def set_route(*, name: str, capacity: str, reason: str, as_json: bool, store: str) -> None:
    most, why = _capacity(capacity), check_reason(reason)

    async def act(app: Redrive) -> RouteTally:
        await app.configure_route(name, capacity=most, reason=why)
        rows = [row for row in (await app.tally()).routes if row.route == name]
        return rows[0] if rows else RouteTally(name)

    now = visit(store, act)
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
