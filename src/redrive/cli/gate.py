"""`redrive gate …`: what redrive knows of the things that handlers depend on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

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
from redrive.cli.output import MISSING, brief, iso, say, seconds
from redrive.cli.output import write_json as print_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.cli.watch import look, watch_option
from redrive.core import durations
from redrive.core.gate import GateConfig
from redrive.core.item import Instant
from redrive.errors import NotFound
from redrive.office.gates import GateView, check_nothing_behind
from redrive.office.letters import check_reason

if TYPE_CHECKING:
    from redrive.app import Redrive

gate = LazyGroup(
    "gate",
    {
        "list": "redrive.cli.gate:list_gates",
        "show": "redrive.cli.gate:show",
        "open": "redrive.cli.gate:open_gate",
        "close": "redrive.cli.gate:close_gate",
        "remove": "redrive.cli.gate:remove",
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
ABOUT_REMOVE = """Remove a gate that no queue stands behind.

\b
Examples:
  redrive gate remove smpt --reason 'it was a typo' --yes

One that an app still declares comes back when that app is opened. It asks first; without a terminal say --yes.
"""
Behind = dict[str, list[str]]


HEADER = ["GATE", "STATE", "SINCE", "OPENED", "NEXT PROBE", "QUEUES", "WHY"]


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@watch_option
@store_option
@verbose_option
def list_gates(*, shape: Shape, watch: int | None, store: str) -> int:
    def draw(found: tuple[tuple[GateView, ...], Behind, Instant]) -> None:
        gates, behind, now = found
        listing: Listing[GateView] = Listing(
            key="gate",
            as_object=lambda view: _as_object(view, behind.get(view.name, [])),
            table=lambda rows: (HEADER, [_row(view, behind, now) for view in rows]),
            line=lambda view: _line(view, behind),
            none="no gates",
            kind=GateView,
        )
        show_list(listing, gates, shape)

    return look(store, _read, draw, watch)


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("name", metavar="GATE")
@json_option
@store_option
@verbose_option
def show(*, name: str, as_json: bool, store: str) -> None:
    gates, behind, now = visit(store, _read)
    found, queues = _named(name, gates), behind.get(name, [])
    if as_json:
        print_json(_as_object(found, queues))
    else:
        show_facts(f"gate {name}", _facts(found, queues, now))


def _named(name: str, gates: tuple[GateView, ...]) -> GateView:
    for view in gates:
        if view.name == name:
            return view
    near = get_close_matches(name, [view.name for view in gates], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "list them with redrive gate list"
    raise NotFound(f"no gate {name!r}", hint=hint)


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
@reason_option("Why; shown by gate list, kept in the audit.")
@json_option
@store_option
@verbose_option
def open_gate(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    _by_hand(store, lambda app: app.open_gate(name, reason=why), as_json=as_json)


@click.command("close", help=ABOUT_CLOSE, context_settings=HELP_NAMES)
@click.argument("name", metavar="GATE")
@reason_option()
@json_option
@store_option
@verbose_option
def close_gate(*, name: str, reason: str, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    _by_hand(store, lambda app: app.close_gate(name, reason=why), as_json=as_json)


@click.command("remove", help=ABOUT_REMOVE, context_settings=HELP_NAMES)
@click.argument("name", metavar="GATE")
@reason_option()
@yes_option
@dry_run_option("Say what would be removed, and remove nothing.")
@json_option
@store_option
@verbose_option
def remove(*, name: str, reason: str, yes: bool, dry_run: bool, as_json: bool, store: str) -> None:
    why = check_reason(reason)
    visit(store, lambda app: _check_removable(app, name))
    if not dry_run:
        confirm(f"gate {name} would be removed", f"Remove gate {name}?", yes=yes)
        visit(store, lambda app: app.remove_gate(name, reason=why), acts=True)
    if as_json:
        print_json({"dry_run": dry_run, "gate": name, "removed": True})
    else:
        say(f"{'would remove' if dry_run else 'removed'} {name}")


async def _check_removable(app: Redrive, name: str) -> None:
    """What `remove_gate` would refuse."""
    gates, behind, _ = await _read(app)
    _named(name, gates)
    check_nothing_behind(name, behind.get(name, []))


def _by_hand(store: str, act: Callable[[Redrive], Awaitable[GateView]], *, as_json: bool) -> None:
    async def acted(app: Redrive) -> tuple[GateView, list[str]]:
        view = await act(app)
        _, behind, _ = await _read(app)
        return view, behind.get(view.name, [])

    view, queues = visit(store, acted, acts=True)
    if as_json:
        print_json(_as_object(view, queues))
    else:
        say(f"gate {view.name} is {view.state}")
