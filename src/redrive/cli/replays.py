"""`redrive replay …`: commands for replays in the background."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from redrive.cli.access import HELP_NAMES, json_option, reason_option, store_option, verbose_option, visit
from redrive.cli.bulk import reasons
from redrive.cli.exits import Exit
from redrive.cli.output import MISSING, iso, say, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Listing, Shape, list_options, show_facts, show_list
from redrive.core.acts import Amended
from redrive.core.rates import format as format_rate
from redrive.core.rates import parse as parse_rate
from redrive.engine.replays import BackgroundReplay, ByPayload
from redrive.office.replays import Replays

T = TypeVar("T")
request_option = click.option("--request", metavar="ID", help="Request id: a repeated act is not done again.")
replay = LazyGroup(
    "replay",
    {
        "list": "redrive.cli.replays:list_replays",
        "show": "redrive.cli.replays:show",
        "pause": "redrive.cli.replays:pause",
        "resume": "redrive.cli.replays:resume",
        "set-rate": "redrive.cli.replays:set_rate",
        "cancel": "redrive.cli.replays:cancel",
        "undo": "redrive.cli.replays:undo",
    },
    help="""Replays in the background: list, pause, cancel, undo.

\b
Examples:
  redrive letters replay --where 'queue:emails' --pace 50/s --reason 'the mail server is back' --yes
  redrive replay list
  redrive replay pause k3v9q2ma7wpd --reason 'it fails again'
""",
)

ABOUT_LIST = """List the replays in the background, the last started first; ended ones come last.

\b
Examples:
  redrive replay list
  redrive replay list -q

In a pipe the columns are ID STATE RATE TOTAL SENT SKIPPED LEFT BY STARTED REASON, separated by tabs.
"""
ABOUT_SHOW = """Show one replay: its state, its rate, and how many of its letters are left.

\b
Examples:
  redrive replay show k3v9q2ma7wpd
  redrive replay show k3v9q2ma7wpd --json | jq .left
"""
ABOUT_PAUSE = """Pause a replay. At most one window of 200 ms is still sent.

\b
Examples:
  redrive replay pause k3v9q2ma7wpd --reason 'it fails again'
  redrive replay resume k3v9q2ma7wpd --reason 'fixed'
"""
ABOUT_RESUME = """Resume a paused replay.

\b
Examples:
  redrive replay resume k3v9q2ma7wpd --reason 'fixed'
  redrive replay show k3v9q2ma7wpd
"""
ABOUT_SET_RATE = """Change the rate of a replay, from its next window on.

\b
Examples:
  redrive replay set-rate k3v9q2ma7wpd 10/s --reason 'gently'
  redrive replay set-rate k3v9q2ma7wpd none --reason 'nothing else runs'
"""
ABOUT_CANCEL = """Cancel a replay. The letters that it has not sent are free for other acts.

\b
Examples:
  redrive replay cancel k3v9q2ma7wpd --reason 'the wrong letters'
  redrive replay list
"""
ABOUT_UNDO = """Cancel a replay, and recall the items that it has sent and no worker has leased since.

\b
Examples:
  redrive replay undo k3v9q2ma7wpd --reason 'the wrong letters'
  redrive replay undo k3v9q2ma7wpd --reason 'the wrong letters' --json

Exit 9 if some items could not be recalled.
"""


@click.command("list", help=ABOUT_LIST, context_settings=HELP_NAMES)
@list_options
@store_option
@verbose_option
def list_replays(*, shape: Shape, store: str) -> None:
    listing: Listing[BackgroundReplay] = Listing(
        key="id",
        as_object=_as_object,
        table=lambda rows: (["ID", "STATE", "RATE", "TOTAL", "SENT", "LEFT", "REASON"], [_row(row) for row in rows]),
        line=_line,
        none="no replays in the background",
        kind=BackgroundReplay,
    )
    show_list(listing, visit(store, lambda app: app.replays.list()), shape)


def _rate(row: BackgroundReplay) -> str:
    return "none" if row.rate is None else format_rate(row.rate)


def _row(row: BackgroundReplay) -> list[str]:
    return [
        row.id,
        row.state,
        _rate(row),
        f"{row.total:,}",
        f"{row.sent:,}",
        f"{row.left:,}",
        row.problem or row.reason,
    ]


def _line(row: BackgroundReplay) -> list[str]:
    counts = [str(row.total), str(row.sent), str(row.skipped), str(row.left)]
    return [row.id, row.state, _rate(row), *counts, row.actor, iso(row.started_at) or MISSING, row.reason]


def _as_object(row: BackgroundReplay) -> dict[str, object]:
    how = row.by_payload or ByPayload()
    return {
        "id": row.id,
        "state": row.state,
        "rate": None if row.rate is None else format_rate(row.rate),
        "total": row.total,
        "sent": row.sent,
        "skipped": row.skipped,
        "left": row.left,
        "by": row.actor,
        "reason": row.reason,
        "started_at": iso(row.started_at),
        "dedupe_by": how.dedupe_by or how.dedupe_function or None,
        "transform": how.transform or None,
        "problem": row.problem or None,
    }


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@json_option
@store_option
@verbose_option
def show(*, id: str, as_json: bool, store: str) -> None:
    _print(visit(store, lambda app: app.replays.get(id)), as_json=as_json)


def _print(row: BackgroundReplay, *, as_json: bool) -> None:
    if as_json:
        write_json(_as_object(row))
        return
    facts = [("state", row.state), ("rate", _rate(row)), ("letters", f"{row.total:,}"), ("sent", f"{row.sent:,}")]
    facts += [("skipped", f"{row.skipped:,}"), ("left", f"{row.left:,}"), ("by", row.actor), ("reason", row.reason)]
    how = row.by_payload or ByPayload()
    more = {"dedupe by": how.dedupe_by or how.dedupe_function, "transform": how.transform, "problem": row.problem}
    show_facts(f"replay {row.id}", facts + [(name, value) for name, value in more.items() if value])


def _act(name: str, about: str, done: str, do: Callable[..., Awaitable[BackgroundReplay]]) -> click.Command:
    @click.command(name, help=about, context_settings=HELP_NAMES)
    @click.argument("id", metavar="ID")
    @reason_option()
    @request_option
    @json_option
    @store_option
    @verbose_option
    def command(*, id: str, reason: str, request: str | None, as_json: bool, store: str) -> None:
        row = visit(store, lambda app: do(app.replays, id, reason=reason, request_id=request), acts=True)
        if as_json:
            write_json(_as_object(row))
        else:
            say(f"{done} {row.id}: {row.sent:,} sent, {row.left:,} left")

    return command


pause = _act("pause", ABOUT_PAUSE, "paused", Replays.pause)
resume = _act("resume", ABOUT_RESUME, "resumed", Replays.resume)
cancel = _act("cancel", ABOUT_CANCEL, "cancelled", Replays.cancel)


@click.command("set-rate", help=ABOUT_SET_RATE, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@click.argument("rate", metavar="RATE|none")
@reason_option()
@request_option
@json_option
@store_option
@verbose_option
def set_rate(*, id: str, rate: str, reason: str, request: str | None, as_json: bool, store: str) -> None:
    meant = None if rate == "none" else parse_rate(rate, field="RATE")
    row = visit(store, lambda app: app.replays.set_rate(id, meant, reason=reason, request_id=request), acts=True)
    _print(row, as_json=as_json)


@click.command("undo", help=ABOUT_UNDO, context_settings=HELP_NAMES)
@click.argument("id", metavar="ID")
@reason_option()
@request_option
@json_option
@store_option
@verbose_option
def undo(*, id: str, reason: str, request: str | None, as_json: bool, store: str) -> int:
    done: Amended = visit(store, lambda app: app.replays.undo(id, reason=reason, request_id=request), acts=True)
    skipped = reasons(done.skipped)
    already = {"already": list(done.already)} if done.already else {}
    if as_json:
        write_json({"recalled": list(done.changed), **already, "skipped": skipped})
    else:
        for why, count in Counter([one.reason for one in done.skipped]).most_common():
            say(f"skipped {count:,}: {why}")
        text = f"recalled {len(done.changed):,}"
        text += f", {len(done.already):,} already by this request" if done.already else ""
        say(text + (f", skipped {len(skipped):,}" if skipped else ""))
    return Exit.PARTLY if skipped else Exit.DONE
