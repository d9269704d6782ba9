"""`redrive status`: where the work stands, what died of what, and who is there to do it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
from msgspec import Struct

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
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
from redrive.core.item import Instant, Millis
from redrive.core.verbs import CauseTally, QueueTally, StoreInfo, WorkerBeat

TOP_CAUSES = 5
ABOUT = """Show the store, its queues and the commonest causes of dead letters.

\b
Examples:
  redrive status
  redrive status --store sqlite:////var/lib/app/redrive.db
  redrive status --json | jq '.queues[] | select(.unattended)'

In a pipe each line starts with its kind, and values are separated by tabs:

\b
  store  ENGINE LOCATION DURABILITY SCHEMA LIBRARY
  queue  QUEUE READY RUNNING DEAD ARCHIVED TRASH DONE CANCELLED OLDEST WORKERS NOTE
  cause  CAUSE COUNT QUEUE LAST ERROR TEXT

OLDEST is how long the longest waiting item has been due. A queue with work to do and no live worker is noted.
"""


class Standing(Struct, frozen=True):
    """All that `status` knows, read at one time."""

    at: Instant
    info: StoreInfo
    queues: tuple[QueueTally, ...]
    causes: tuple[CauseTally, ...]
    workers: tuple[WorkerBeat, ...]

    def live(self) -> Counter[str]:
        """Live workers by queue."""
        return Counter(queue for beat in self.workers if beat.alive for queue in beat.facts.queues)

    def due_for(self, row: QueueTally) -> Millis | None:
        """How long the longest waiting item has been due; None when nothing is."""
        if not row.ready or row.oldest_due is None or row.oldest_due > self.at:
            return None
        return self.at - row.oldest_due

    def unattended(self, row: QueueTally) -> bool:
        """Work to do, or held by somebody who is gone, and nobody there. A paused queue is left alone on purpose."""
        to_do = row.leased > 0 or (self.due_for(row) is not None and not row.paused)
        return to_do and not self.live()[row.queue]


@click.command("status", help=ABOUT, context_settings=HELP_NAMES)
@store_option
@json_option
@verbose_option
def status(*, store: str, as_json: bool) -> None:
    standing = visit(store, _read)
    if as_json:
        write_json(_as_object(standing))
    elif on_terminal():
        _show(standing)
    else:
        tabbed(_lines(standing))


async def _read(app: Redrive) -> Standing:
    tally = await app.tally()
    causes = await app.causes(limit=TOP_CAUSES)
    return Standing(tally.at, app.info(), tally.queues, causes, await app.workers())


def _show(standing: Standing) -> None:
    info = standing.info
    write(
        f"{bold(clean(info.location))}  {info.engine}, survives {info.durability}, schema {info.schema}, {info.library}"
    )
    if not standing.queues:
        write("no queues yet")
        return
    write("")
    header = ["QUEUE", "READY", "RUNNING", "DEAD", "ARCHIVED", "TRASH", "DONE", "OLDEST", "WORKERS", "NOTE"]
    live = standing.live()
    rows = []
    for row in standing.queues:
        due = standing.due_for(row)
        counts = [row.ready, row.leased, row.open, row.archived, row.trash, row.done]
        oldest = MISSING if due is None else brief(due)
        rows.append([row.queue, *map(str, counts), oldest, str(live[row.queue]), _flags(standing, row)])
    columns(header, rows)
    if standing.causes:
        write("")
        header = ["CAUSE", "COUNT", "QUEUE", "LAST", "ERROR"]
        causes = [
            [c.cause, str(c.count), c.queue, f"{brief(standing.at - c.last_at)} ago", f"{c.error}: {c.text}"]
            for c in standing.causes
        ]
        columns(header, causes)
    _show_troubles(standing)


def _show_troubles(standing: Standing) -> None:
    """Below the table, where a long reason is not cut off."""
    paused = [f"paused: {row.queue}, {_who_paused(row)}" for row in standing.queues if row.paused]
    alone = [row.queue for row in standing.queues if standing.unattended(row)]
    if paused or alone:
        write("")
    for line in paused:
        write(clean(line))
    if alone:
        write(red(clean(f"no live worker for: {', '.join(alone)}")))


def _who_paused(row: QueueTally) -> str:
    return f"by {row.paused_by or 'somebody'}: {row.paused_reason or 'no reason given'}"


def _flags(standing: Standing, row: QueueTally) -> str:
    return ", ".join(["PAUSED"] * row.paused + ["NO WORKER"] * standing.unattended(row))


def _note(standing: Standing, row: QueueTally) -> str:
    notes = []
    if row.paused:
        notes.append(f"paused {_who_paused(row)}")
    if standing.unattended(row):
        notes.append("NO WORKER")
    return ", ".join(notes)


def _lines(standing: Standing) -> list[list[str]]:
    info = standing.info
    lines = [["store", info.engine, info.location, info.durability, str(info.schema), info.library]]
    live = standing.live()
    for row in standing.queues:
        counts = (row.ready, row.leased, row.open, row.archived, row.trash, row.done, row.cancelled)
        due = standing.due_for(row)
        oldest = MISSING if due is None else f"{due / 1000:g}"
        note = _note(standing, row) or MISSING
        lines.append(["queue", row.queue, *map(str, counts), oldest, str(live[row.queue]), note])
    for cause in standing.causes:
        last = iso(cause.last_at) or MISSING
        lines.append(["cause", cause.cause, str(cause.count), cause.queue, last, cause.error, cause.text])
    return lines


def _as_object(standing: Standing) -> dict[str, Any]:
    info, live = standing.info, standing.live()
    return {
        "at": iso(standing.at),
        "store": {
            "engine": info.engine,
            "location": info.location,
            "durability": info.durability,
            "schema": info.schema,
            "library": info.library,
        },
        "queues": [_queue_object(standing, row, live[row.queue]) for row in standing.queues],
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
        "workers": [_worker_object(beat) for beat in standing.workers],
    }


def _queue_object(standing: Standing, row: QueueTally, workers: int) -> dict[str, Any]:
    return {
        "queue": row.queue,
        "ready": row.ready,
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
        "workers": workers,
        "unattended": standing.unattended(row),
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
