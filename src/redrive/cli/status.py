"""`redrive status`: where the work stands, what died of what, and who is there to do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option
from redrive.cli.output import (
    MISSING,
    bold,
    brief,
    clean,
    columns,
    iso,
    on_terminal,
    red,
    seconds,
    tabbed,
    write,
    write_json,
)
from redrive.cli.standing import Standing, read
from redrive.cli.watch import look, watch_option
from redrive.core import rates
from redrive.core.verbs import QueueSettings, QueueTally, WorkerBeat

ABOUT = """Show the store, its queues and the commonest causes of dead letters.

\b
Examples:
  redrive status
  redrive status --watch
  redrive status --store sqlite:////var/lib/app/redrive.db
  redrive status --json | jq '.queues[] | select(.unattended)'

In a pipe each line starts with its kind, and values are separated by tabs:

\b
  store  ENGINE LOCATION DURABILITY SCHEMA LIBRARY
  queue  QUEUE READY RUNNING DEAD ARCHIVED TRASH DONE CANCELLED OLDEST WORKERS HELD PARKED NOTE
  cause  CAUSE COUNT QUEUE LAST ERROR TEXT
  route  ROUTE OPEN CAPACITY

OLDEST is how long the longest waiting item that could run has been due: neither HELD, which wait for other items, nor
PARKED, which stand behind a dead one, count. A queue with work to do and no live worker is noted, and so are work that
stands still behind dead letters and limits that are reached.
"""


@click.command("status", help=ABOUT, context_settings=HELP_NAMES)
@watch_option
@store_option
@json_option
@verbose_option
def status(*, watch: int | None, store: str, as_json: bool) -> int:
    def draw(standing: Standing) -> None:
        if as_json:
            write_json(_as_object(standing))
        elif on_terminal():
            show(standing)
        else:
            tabbed(_lines(standing))

    return look(store, read, draw, watch)


def show(standing: Standing) -> None:
    """For a terminal."""
    info = standing.info
    write(
        f"{bold(clean(info.location))}  {info.engine}, survives {info.durability}, schema {info.schema}, {info.library}"
    )
    if not standing.queues:
        write("no queues yet")
        return
    write("")
    columns(*table(standing, standing.queues))
    if standing.causes:
        write("")
        header = ["CAUSE", "COUNT", "QUEUE", "LAST", "ERROR"]
        causes = [
            [c.cause, str(c.count), c.queue, f"{brief(standing.at - c.last_at)} ago", f"{c.error}: {c.text}"]
            for c in standing.causes
        ]
        columns(header, causes)
    _show_troubles(standing)


def table(standing: Standing, queues: Sequence[QueueTally]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for a terminal. What waits for others has columns only where there is any."""
    live = standing.live()
    waiting = {
        "HELD": [row.held for row in queues],
        "PARKED": [row.parked for row in queues],
    }
    waiting = {name: counts for name, counts in waiting.items() if any(counts)}
    header = ["QUEUE", "READY", *waiting, "RUNNING", "DEAD", "ARCHIVED", "TRASH", "DONE", "OLDEST", "WORKERS", "NOTE"]
    rows = []
    for at, row in enumerate(queues):
        due = standing.due_for(row)
        held = [counts[at] for counts in waiting.values()]
        counts = [row.ready, *held, row.leased, row.open, row.archived, row.trash, row.done]
        oldest = MISSING if due is None else brief(due)
        rows.append([row.queue, *map(str, counts), oldest, str(live[row.queue]), _flags(standing, row)])
    return header, rows


def _show_troubles(standing: Standing) -> None:
    """Below the table, where a long reason is not cut off."""
    paused = [f"paused: {row.queue}, {_who_paused(row)}" for row in standing.queues if row.paused]
    alone = [row.queue for row in standing.queues if standing.unattended(row)]
    full = [f"full: route {row.route}, {row.open:,} of {row.capacity:,} open letters" for row in standing.full_routes()]
    shut = [f"open: gate {gate.name}, {gate.why}" for gate in standing.gates if gate.state != "closed"]
    still = [f"stands still: {each.queue}, {each}" for each in standing.stuck]
    if paused or alone or full or shut or still:
        write("")
    for line in (*paused, *full, *shut, *still):
        write(clean(line))
    if alone:
        write(red(clean(f"no live worker for: {', '.join(alone)}")))


def _who_paused(row: QueueTally) -> str:
    return f"by {row.paused_by or 'somebody'}: {row.paused_reason or 'no reason given'}"


def _flags(standing: Standing, row: QueueTally) -> str:
    words = ["PAUSED"] * row.paused + ["NO WORKER"] * standing.unattended(row)
    words += ["BEHIND DEAD LETTERS"] * (standing.stuck_in(row) is not None)
    return ", ".join([*words, *standing.reached(row)])


def note(standing: Standing, row: QueueTally) -> str:
    notes = []
    if row.paused:
        notes.append(f"paused {_who_paused(row)}")
    if standing.unattended(row):
        notes.append("NO WORKER")
    still = standing.stuck_in(row)
    if still is not None:
        notes.append(str(still))
    notes += standing.reached(row)
    return ", ".join(notes)


def _lines(standing: Standing) -> list[list[str]]:
    info = standing.info
    lines = [["store", info.engine, info.location, info.durability, str(info.schema), info.library]]
    lines += [["queue", *queue_line(standing, row)] for row in standing.queues]
    for cause in standing.causes:
        last = iso(cause.last_at) or MISSING
        lines.append(["cause", cause.cause, str(cause.count), cause.queue, last, cause.error, cause.text])
    for route in standing.routes:
        room = MISSING if route.capacity is None else str(route.capacity)
        if route.route:
            lines.append(["route", route.route, str(route.open), room])
    return lines


def queue_line(standing: Standing, row: QueueTally) -> list[str]:
    """For a pipe."""
    counts = (row.ready, row.leased, row.open, row.archived, row.trash, row.done, row.cancelled)
    due = standing.due_for(row)
    oldest = MISSING if due is None else f"{due / 1000:g}"
    waiting = (standing.live()[row.queue], row.held, row.parked)
    return [row.queue, *map(str, counts), oldest, *map(str, waiting), note(standing, row) or MISSING]


def _as_object(standing: Standing) -> dict[str, Any]:
    info = standing.info
    return {
        "at": iso(standing.at),
        "store": {
            "engine": info.engine,
            "location": info.location,
            "durability": info.durability,
            "schema": info.schema,
            "library": info.library,
        },
        "queues": [queue_object(standing, row) for row in standing.queues],
        "causes": [
            {
                "cause": cause.cause,
                "count": cause.count,
                "queue": cause.queue,
                "error": cause.error,
                "text": cause.text,
                "first_at": iso(cause.first_at),
                "last_at": iso(cause.last_at),
            }
            for cause in standing.causes
        ],
        "routes": [{"route": route.route, "open": route.open, "capacity": route.capacity} for route in standing.routes],
        "workers": [_worker_object(beat) for beat in standing.workers],
    }


def queue_object(standing: Standing, row: QueueTally) -> dict[str, Any]:
    still = standing.stuck_in(row)
    return {
        "queue": row.queue,
        "ready": row.ready,
        "held": row.held,
        "parked": row.parked,
        "running": row.leased,
        "dead": row.open,
        "archived": row.archived,
        "trash": row.trash,
        "done": row.done,
        "cancelled": row.cancelled,
        "oldest_due": iso(row.oldest_due),
        "oldest_due_age": seconds(standing.due_for(row)),
        "paused": row.paused,
        "paused_by": row.paused_by,
        "paused_reason": row.paused_reason,
        "workers": standing.live()[row.queue],
        "unattended": standing.unattended(row),
        "behind_letters": 0 if still is None else still.count,
        "limits_reached": [word.lower() for word in standing.reached(row)],
        "settings": settings_object(row.settings),
    }


def settings_object(settings: QueueSettings) -> dict[str, Any]:
    rate = settings.rate
    return {
        "max_running": settings.max_running,
        "max_per_key": settings.max_per_key,
        "rate": None if rate is None else rates.format(rate),
        "capacity": settings.capacity,
        "order": settings.order,
        "policy": settings.policy or None,
        "gate": settings.gate or None,
        "keep": seconds(settings.keep),
        "keep_results": seconds(settings.keep_results),
        "retry_share": settings.retry_share,
        "keep_trash": seconds(settings.keep_trash),
    }


def _worker_object(beat: WorkerBeat) -> dict[str, Any]:
    facts = beat.facts
    return {
        "worker": beat.worker,
        "alive": beat.alive,
        "seen_at": iso(beat.seen_at),
        "started_at": iso(facts.started_at),
        "queues": list(facts.queues),
        "running": facts.running,
        "host": facts.host,
        "pid": facts.pid,
        "release": facts.release,
    }
