"""`redrive worker list`: who is there, who is ending, and who was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, store_option, verbose_option
from redrive.cli.output import MISSING, brief, iso
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.cli.watch import look, watch_option
from redrive.core.item import Instant
from redrive.core.verbs import WorkerBeat, WorkerFacts

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """List the workers: those that are alive, and those that were lost within the last day.

\b
Examples:
  redrive worker list
  redrive worker list --all
  redrive worker list --json | jq '.[] | select(.state == "lost")'

A worker is alive, draining or stopping (an operator asked it to end), stopped (in good order, shown with --all) or
lost: it was not heard of for 30s, and what it held comes back by itself. SEEN is how long ago it was heard of, which is
every 10s: one that was killed a moment ago is called alive still, and SEEN grows. In a pipe the columns are WORKER
STATE RUNNING SLOTS UP SEEN HOST PID RELEASE QUEUES, separated by tabs; a queue of which a worker takes some kinds only
stands with them, as orders[refund].
"""

STATES = {"drain": "draining", "stop": "stopping"}


@click.command("list", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--all", "everybody", is_flag=True, help="Also those that stopped within the last day.")
@list_options
@watch_option
@store_option
@verbose_option
def list_workers(*, everybody: bool, shape: Shape, watch: int | None, store: str) -> int:
    async def ask(app: Redrive) -> tuple[Instant, tuple[WorkerBeat, ...]]:
        beats = [beat for beat in await app.workers() if everybody or state_of(beat) != "stopped"]
        return (await app.tally(members=False)).at, tuple(beats)

    def draw(answer: tuple[Instant, tuple[WorkerBeat, ...]]) -> None:
        now, beats = answer
        show_list(listing(now), beats, shape)

    return look(store, ask, draw, watch)


def state_of(beat: WorkerBeat) -> str:
    if beat.facts.stopped:
        return "stopped"
    if not beat.alive:
        return "lost"
    return STATES.get(beat.facts.order, "alive")


def listing(now: Instant) -> Listing[WorkerBeat]:
    def table(beats: Sequence[WorkerBeat]) -> tuple[list[str], list[list[str]]]:
        header = ["WORKER", "STATE", "RUNNING", "SLOTS", "UP", "SEEN", "RELEASE", "QUEUES"]
        return header, [_cells(beat, now) for beat in beats]

    return Listing(
        key="worker",
        as_object=_as_object,
        table=table,
        line=lambda beat: _line(beat, now),
        none="no workers",
        kind=WorkerBeat,
    )


def _cells(beat: WorkerBeat, now: Instant) -> list[str]:
    worker, state, running, slots, up, seen, _, _, release, queues = _line(beat, now)
    return [worker, state, running, slots, up, f"{seen} ago", release, queues]


def _line(beat: WorkerBeat, now: Instant) -> list[str]:
    facts = beat.facts
    until = now if beat.alive else beat.seen_at
    return [
        beat.worker,
        state_of(beat),
        str(facts.running),
        str(facts.slots) if facts.slots else MISSING,
        brief(until - facts.started_at) if facts.started_at else MISSING,
        brief(now - beat.seen_at),
        facts.host or MISSING,
        str(facts.pid) if facts.pid else MISSING,
        facts.release or MISSING,
        ",".join([_with_kinds(facts, queue) for queue in facts.queues]) or MISSING,
    ]


def _with_kinds(facts: WorkerFacts, queue: str) -> str:
    kinds = facts.kinds_of(queue)
    return queue if kinds is None else f"{queue}[{','.join(kinds)}]"


def _as_object(beat: WorkerBeat) -> dict[str, Any]:
    facts = beat.facts
    return {
        "worker": beat.worker,
        "state": state_of(beat),
        "running": facts.running,
        "slots": facts.slots or None,
        "queues": list(facts.queues),
        "kinds": {queue: kinds for queue in facts.queues if (kinds := facts.kinds_of(queue)) is not None},
        "host": facts.host,
        "pid": facts.pid,
        "release": facts.release,
        "started_at": iso(facts.started_at) if facts.started_at else None,
        "seen_at": iso(beat.seen_at),
    }
