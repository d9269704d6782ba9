"""`redrive health`: is something wrong that somebody should look at? For monitors, and for people in a hurry."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, WholeNumber, json_option, store_option, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import brief, clean, counted, iso, on_terminal, red, tabbed, write, write_json
from redrive.cli.watch import look, watch_option
from redrive.core.filters import render
from redrive.core.item import short_id
from redrive.core.select import Match
from redrive.doors import Problem
from redrive.engine.registry import OUTBOX, is_outbox
from redrive.office import doors

if TYPE_CHECKING:
    from redrive.cli.standing import Standing
    from redrive.core.verbs import QueueTally

STUCK = 300_000
"""Milliseconds after which an undelivered outbox item is a finding."""

ABOUT = """Say what is wrong: work without a worker, waiting too long or standing still behind dead letters, lost
workers, open gates, full routes, outboxes that were not delivered for five minutes, a Redis with hardly any memory
left. Exit 10 if there is anything, 0 if not, 7 if the store cannot be asked.

\b
Examples:
  redrive health
  redrive health --oldest 5m --max-letters 0
  redrive health --json || echo degraded

A paused queue is left alone on purpose, and no trouble; dead letters are, if there are more than --max-letters.
In a pipe each line is KIND, WHAT, TEXT and a command that helps, separated by tabs; none if all is well.
"""


@click.command("health", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--oldest", metavar="DURATION", default="15m", show_default=True, help="Longer must nothing be due.")
@click.option("--max-letters", metavar="N", type=WholeNumber(min=0), help="More open letters are trouble.")
@json_option
@watch_option
@store_option
@verbose_option
def health(*, oldest: str, max_letters: int | None, as_json: bool, watch: int | None, store: str) -> int:
    from redrive.cli.standing import read_with_memory
    from redrive.core import durations

    longest = durations.parse(oldest, field="--oldest")
    found: list[Problem] = []

    def draw(standing: Standing) -> None:
        found[:] = problems(standing, longest, max_letters)
        _show(standing, found, as_json=as_json)

    ended = look(store, read_with_memory, draw, watch)
    return Exit.UNSOUND if found and ended is Exit.DONE else ended


def problems(standing: Standing, longest: int, max_letters: int | None) -> Iterator[Problem]:
    yield from _queues(standing, longest)
    for gate in standing.gates:
        if gate.state != "closed":
            by = f" by {gate.by}" if gate.by else ""
            do = f"redrive gate show {quote(gate.name)}"
            yield Problem("gate_open", gate.name, f"gate {gate.name} is {gate.state}{by}: {gate.why}", do)
    for route in standing.full_routes():
        text = f"route {route.route} is full: {route.open:,} of {route.capacity:,} open letters"
        yield Problem("route_full", route.route, text, _letters("route", route.route))
    for beat in standing.workers:
        if not beat.alive and not beat.facts.stopped and beat.facts.running:
            text = f"worker {beat.worker} was lost with {beat.facts.running:,} in hand"
            said = f"{text}; last heard of {brief(standing.at - beat.seen_at)} ago"
            yield Problem("worker_lost", beat.worker, said, "redrive worker list")
    if standing.scarce:
        yield Problem("memory", "", standing.scarce, "raise maxmemory, or redrive queue prune")
    yield from standing.of_doors
    letters = sum(row.open for row in standing.queues)
    if max_letters is not None and letters > max_letters:
        text = f"{letters:,} open letters, {max_letters:,} are borne"
        yield Problem("letters", "", text, "redrive letters list --by cause")


def _letters(field: str, name: str) -> str:
    return f"redrive letters list --where {quote(render(Match(field, '=', name)))}"


def _queues(standing: Standing, longest: int) -> Iterator[Problem]:
    for row in standing.queues:
        due = standing.due_for(row)
        if is_outbox(row.queue):
            yield from _outbox(standing, row)
        elif standing.unattended(row):
            text = f"queue {row.queue} has {row.ready + row.leased:,} to do and no live worker"
            yield Problem("no_worker", row.queue, text, doors.start(standing.doors.get(row.queue, ""), row.queue))
        elif due is not None and due > longest and not row.paused:
            text = f"queue {row.queue}: the oldest item has been due for {brief(due)}"
            yield Problem("too_old", row.queue, text, f"redrive queue show {quote(row.queue)}")
        if row.parked:
            text = f"queue {row.queue} has {row.parked:,} parked behind dead heads of their order keys"
            yield Problem("parked", row.queue, text, _letters("queue", row.queue))
        still = standing.stuck_in(row)
        if still is not None:
            do = f"redrive letters show {quote(short_id(still.letters[0]))}"
            yield Problem("held", row.queue, f"queue {row.queue}: {still}", do)
        if "FULL" in standing.reached(row):
            text = f"queue {row.queue} is at its capacity of {row.settings.capacity:,}: enqueue refuses"
            yield Problem("queue_full", row.queue, text, f"redrive queue show {quote(row.queue)}")


def _outbox(standing: Standing, row: QueueTally) -> Iterator[Problem]:
    target, count = row.queue.removeprefix(OUTBOX), counted(row.ready + row.leased, "item")
    oldest = standing.undelivered.get(row.queue)
    if standing.unattended(row):
        text = f"outbox {target} has {count} to deliver, and no live process that delivers to it"
        yield Problem("outbox_unserved", target, text, doors.start("", row.queue))
    elif oldest is not None and standing.at - oldest.enqueued_at > STUCK and not row.paused:
        text = f"outbox {target} has {count} to deliver, the oldest since {brief(standing.at - oldest.enqueued_at)}"
        yield Problem("outbox_stuck", target, text, f"redrive item explain {quote(short_id(oldest.id))}")


def _show(standing: Standing, found: list[Problem], *, as_json: bool) -> None:
    if as_json:
        write_json(_as_object(standing, found))
    elif not on_terminal():
        tabbed([each.kind, each.what, each.text, each.do] for each in found)
    elif not found:
        alive = sum(beat.alive for beat in standing.workers)
        write(f"healthy: {counted(len(standing.queues), 'queue')}, {counted(alive, 'live worker')}")
    for each in found if on_terminal() and not as_json else ():
        write(f"{red(clean(each.text))}\n    {clean(each.do)}")


def _as_object(standing: Standing, found: list[Problem]) -> dict[str, Any]:
    return {
        "healthy": not found,
        "at": iso(standing.at),
        "problems": [{"kind": each.kind, "what": each.what, "text": each.text, "do": each.do} for each in found],
    }
