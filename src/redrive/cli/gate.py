"""`redrive gate …`: what redrive knows of the things that handlers depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import click
from msgspec import to_builtins

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.output import MISSING, bold, brief, clean, columns, iso, on_terminal, say, seconds, tabbed, write
from redrive.cli.output import write_json as print_json
from redrive.cli.root import LazyGroup
from redrive.core import durations
from redrive.core.gate import GateConfig
from redrive.core.item import Instant
from redrive.errors import NotFound
from redrive.office.gates import GateView
from redrive.office.letters import check_reason

gate = LazyGroup(
    "gate",
    {
        "list": "redrive.cli.gate:list_gates",
        "show": "redrive.cli.gate:show",
        "open": "redrive.cli.gate:open_gate",
        "close": "redrive.cli.gate:close_gate",
    },
    help="""Gates: circuit breakers of named dependencies, for the whole fleet.

\b
Examples:
  redrive gate list
  redrive gate open smtp --reason 'the provider asked us to stop'
  redrive gate close smtp --reason 'they are back'
""",
)

ABOUT_LIST = """List the gates: closed is well, open lets nothing through but probes.

\b
Examples:
  redrive gate list
  redrive gate list --json | jq '.[] | select(.state != "closed")'

In a pipe the columns are GATE STATE SINCE OPENED FAILURES OUTCOMES NEXT-PROBE QUEUES WHY, separated by tabs.
"""
ABOUT_SHOW = """Show one gate: its state and why, its budget, how it judges, and the queues behind it.

\b
Examples:
  redrive gate show smtp
"""
ABOUT_OPEN = """Open a gate by hand: no worker gets anything behind it, not even a probe, until it is closed.

\b
Examples:
  redrive gate open smtp --reason 'the provider asked us to stop'

What runs goes on. Items wait, and are charged nothing.
"""
ABOUT_CLOSE = """Close a gate by hand: what waits behind it flows again, and failures are counted anew.

\b
Examples:
  redrive gate close smtp --reason 'they are back'
"""
Behind = dict[str, list[str]]


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@json_option
@store_option
@verbose_option
def list_gates(*, as_json: bool, store: str) -> None:
    gates, behind, now = visit(store, _read)
    if as_json:
        print_json([_as_object(view, behind.get(view.name, [])) for view in gates])
    elif on_terminal():
        header = ["GATE", "STATE", "SINCE", "OPENED", "NEXT PROBE", "QUEUES", "WHY"]
        columns(header, [_row(view, behind, now) for view in gates])
        if not gates:
            say("no gates")
    else:
        tabbed(_line(view, behind) for view in gates)


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="GATE")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    gates, behind, now = visit(store, _read)
    found = [view for view in gates if view.name == name]
    if not found:
        raise NotFound(f"no gate {name!r}", hint="list them with redrive gate list")
    queues = behind.get(name, [])
    if as_json:
        print_json(_as_object(found[0], queues))
    elif on_terminal():
        write(bold(f"gate {clean(name)}"))
        for word, value in _facts(found[0], queues, now):
            write(f"  {word:<13} {clean(value)}")
    else:
        tabbed(_facts(found[0], queues, now))


async def _read(app: Redrive) -> tuple[tuple[GateView, ...], Behind, Instant]:
    tally = await app.tally()
    behind: Behind = {}
    for row in tally.queues:
        if row.settings.gate:
            behind.setdefault(row.settings.gate, []).append(row.queue)
    return await app.gates(), behind, tally.at


def _row(view: GateView, behind: Behind, now: Instant) -> list[str]:
    since = MISSING if view.since is None else f"{brief(now - view.since)} ago"
    probe = MISSING if view.next_probe_at is None else _in(view.next_probe_at, now)
    queues = ", ".join(behind.get(view.name, [])) or MISSING
    return [view.name, view.state, since, str(view.opened), probe, queues, _why(view)]


def _line(view: GateView, behind: Behind) -> list[str]:
    counts = [str(view.opened), str(view.failures), str(view.outcomes)]
    times = [iso(view.since) or MISSING, *counts, iso(view.next_probe_at) or MISSING]
    return [view.name, view.state, *times, ",".join(behind.get(view.name, [])) or MISSING, _why(view) or MISSING]


def _in(at: Instant, now: Instant) -> str:
    return "now" if at <= now else f"in {brief(at - now)}"


def _why(view: GateView) -> str:
    return f"by {view.by}: {view.why}" if view.by else view.why


def _facts(view: GateView, queues: list[str], now: Instant) -> Iterator[tuple[str, str]]:
    yield "state", view.state
    yield "since", iso(view.since) or MISSING
    yield "why", _why(view) or MISSING
    yield "next probe", MISSING if view.next_probe_at is None else _in(view.next_probe_at, now)
    yield "opened", str(view.opened)
    yield "failures", f"{view.failures} of {view.outcomes}"
    yield "retries", "as many as there are" if view.retries is None else f"{view.retries:g} saved up"
    yield "queues", ", ".join(queues) or MISSING
    yield "judges", _judges(view.config)


def _judges(config: GateConfig) -> str:
    signs = []
    if config.failure_rate is not None:
        within = durations.format(config.window)
        signs.append(f"{config.failure_rate:.0%} of {config.least} or more failed within {within}")
    if config.consecutive is not None:
        signs.append(f"{config.consecutive} failed in a row")
    opens = f"opens when {' or '.join(signs)}" if signs else "never opens by itself"
    first, longest = durations.format(config.interval), durations.format(config.longest)
    return f"{opens}; then {config.probes} at a time, each {first} to {longest}"


def _as_object(view: GateView, queues: list[str]) -> dict[str, Any]:
    return {
        "gate": view.name,
        "state": view.state,
        "since": iso(view.since),
        "why": view.why,
        "by": view.by or None,
        "next_probe_at": iso(view.next_probe_at),
        "opened": view.opened,
        "failures": view.failures,
        "outcomes": view.outcomes,
        "retries": view.retries,
        "queues": queues,
        "config": {
            name: seconds(value) if name in DURATIONS else value for name, value in to_builtins(view.config).items()
        },
    }


DURATIONS = ("window", "interval", "longest", "retry_floor")


@click.command("open", help=ABOUT_OPEN, context_settings=HELP_NAMES)
@click.argument("name", metavar="GATE")
@click.option("--reason", metavar="TEXT", required=True, help="Why; shown by gate list, kept in the audit.")
@json_option
@store_option
@verbose_option
def open_gate(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    _by_hand(store, lambda app: app.open_gate(name, reason=why), as_json=as_json)


@click.command("close", help=ABOUT_CLOSE, context_settings=HELP_NAMES)
@click.argument("name", metavar="GATE")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@json_option
@store_option
@verbose_option
def close_gate(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    _by_hand(store, lambda app: app.close_gate(name, reason=why), as_json=as_json)


def _by_hand(store: str, act: Callable[[Redrive], Awaitable[GateView]], *, as_json: bool) -> None:
    async def acted(app: Redrive) -> tuple[GateView, list[str]]:
        view = await act(app)
        _, behind, _ = await _read(app)
        return view, behind.get(view.name, [])

    view, queues = visit(store, acted)
    if as_json:
        print_json(_as_object(view, queues))
    else:
        say(f"gate {view.name} is {view.state}")
