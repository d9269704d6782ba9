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
from redrive.cli.watch import look, watch_option
from redrive.core import durations, rates
from redrive.core.item import Millis
from redrive.core.verbs import RETRY_SHARE, TRASH_KEPT, QueueSettings, WorkerBeat
from redrive.office.overview import Overview, QueueOverview
from redrive.office.settings import OFF

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
    def draw(view: Overview) -> None:
        if as_json:
            write_json(_as_object(view))
        elif on_terminal():
            show(view)
        else:
            tabbed(_lines(view))

    return look(store, lambda app: app.overview(), draw, watch)


def show(view: Overview) -> None:
    """For a terminal."""
    info = view.info
    write(
        f"{bold(clean(info.location))}  {info.engine}, survives {info.durability}, schema {info.schema}, {info.library}"
    )
    if not view.queues:
        write("no queues yet")
        return
    write("")
    columns(*table(view.queues))
    show_causes(view)
    _show_troubles(view)


def show_causes(view: Overview) -> None:
    if view.causes:
        write("")
        header = ["CAUSE", "COUNT", "QUEUE", "LAST", "ERROR"]
        rows = [
            [
                each.cause,
                str(each.count),
                each.queue,
                f"{brief(view.at - each.last_at)} ago",
                f"{each.error}: {each.text}",
            ]
            for each in view.causes
        ]
        columns(header, rows)


def table(queues: Sequence[QueueOverview]) -> tuple[list[str], list[list[str]]]:
    """Header and rows for a terminal. HELD and PARKED have columns only where there are any."""
    tallies = [row.tally for row in queues]
    waiting = {"HELD": [row.held for row in tallies], "PARKED": [row.parked for row in tallies]}
    waiting = {name: counts for name, counts in waiting.items() if any(counts)}
    header = ["QUEUE", "READY", *waiting, "RUNNING", "DEAD", "ARCHIVED", "TRASH", "DONE", "OLDEST", "WORKERS", "NOTE"]
    rows = []
    for at, (queue, row) in enumerate(zip(queues, tallies, strict=True)):
        held = [counts[at] for counts in waiting.values()]
        counts = [row.ready, *held, row.leased, row.open, row.archived, row.trash, row.done]
        oldest = MISSING if queue.oldest is None else brief(queue.oldest)
        rows.append([row.queue, *map(str, counts), oldest, str(queue.workers), _flags(queue)])
    return header, rows


def _show_troubles(view: Overview) -> None:
    """Below the table, where a long reason is not cut off."""
    paused = [f"paused: {row.name}, {_who_paused(row)}" for row in view.queues if row.tally.paused]
    alone = [row.name for row in view.queues if row.unattended]
    full = [f"full: route {row.route}, {row.open:,} of {row.capacity:,} open letters" for row in view.full_routes]
    shut = [f"open: gate {gate.name}, {gate.why}" for gate in view.open_gates]
    still = [f"stands still: {row.name}, {row.stuck}" for row in view.queues if row.stuck is not None]
    if paused or alone or full or shut or still:
        write("")
    for line in (*paused, *full, *shut, *still):
        write(clean(line))
    if alone:
        write(red(clean(f"no live worker for: {', '.join(alone)}")))


def _who_paused(row: QueueOverview) -> str:
    return f"by {row.tally.paused_by or 'somebody'}: {row.tally.paused_reason or 'no reason given'}"


def _flags(row: QueueOverview) -> str:
    words = ["PAUSED"] * row.tally.paused + ["NO WORKER"] * row.unattended + no_worker_for(row)
    words += ["BEHIND DEAD LETTERS"] * (row.stuck is not None)
    return ", ".join([*words, *row.reached])


def no_worker_for(row: QueueOverview) -> list[str]:
    return [f"NO WORKER FOR KIND {kind}" if kind else "NO WORKER WITHOUT A KIND" for kind in row.unserved]


def note(row: QueueOverview) -> str:
    notes = [f"paused {_who_paused(row)}"] if row.tally.paused else []
    notes += ["NO WORKER"] * row.unattended + no_worker_for(row)
    notes += [] if row.stuck is None else [str(row.stuck)]
    return ", ".join([*notes, *row.reached])


def _lines(view: Overview) -> list[list[str]]:
    info = view.info
    lines = [["store", info.engine, info.location, info.durability, str(info.schema), info.library]]
    lines += [["queue", *queue_line(row)] for row in view.queues]
    for cause in view.causes:
        last = iso(cause.last_at) or MISSING
        lines.append(["cause", cause.cause, str(cause.count), cause.queue, last, cause.error, cause.text])
    for route in view.routes:
        room = MISSING if route.capacity is None else str(route.capacity)
        if route.route:
            lines.append(["route", route.route, str(route.open), room])
    return lines


def queue_line(queue: QueueOverview) -> list[str]:
    """For a pipe."""
    row = queue.tally
    counts = (row.ready, row.leased, row.open, row.archived, row.trash, row.done, row.cancelled)
    oldest = MISSING if queue.oldest is None else f"{queue.oldest / 1000:g}"
    waiting = (queue.workers, row.held, row.parked)
    return [row.queue, *map(str, counts), oldest, *map(str, waiting), note(queue) or MISSING]


def _as_object(view: Overview) -> dict[str, Any]:
    info = view.info
    return {
        "at": iso(view.at),
        "store": {
            "engine": info.engine,
            "location": info.location,
            "durability": info.durability,
            "schema": info.schema,
            "library": info.library,
        },
        "queues": [queue_object(row) for row in view.queues],
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
            for cause in view.causes
        ],
        "routes": [{"route": route.route, "open": route.open, "capacity": route.capacity} for route in view.routes],
        "workers": [_worker_object(beat) for beat in view.workers],
    }


def queue_object(queue: QueueOverview) -> dict[str, Any]:
    row = queue.tally
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
        "oldest_due_age": seconds(queue.oldest),
        "paused": row.paused,
        "paused_by": row.paused_by,
        "paused_reason": row.paused_reason,
        "workers": queue.workers,
        "unattended": queue.unattended,
        "unserved_kinds": list(queue.unserved),
        "behind_letters": 0 if queue.stuck is None else queue.stuck.count,
        "limits_reached": [word.lower() for word in queue.reached],
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
        "encrypt": settings.encrypt,
    }


def limits(settings: QueueSettings) -> dict[str, str]:
    """The settings that are not as a new queue has them, as `queue set` takes them."""
    words: dict[str, str | None] = {
        "max_running": _number(settings.max_running),
        "max_per_key": _number(settings.max_per_key),
        "rate": None if settings.rate is None else rates.format(settings.rate),
        "capacity": _number(settings.capacity),
        "order": None if settings.order == "block" and "order" not in settings.own else settings.order,
        "policy": settings.policy or None,
        "gate": settings.gate or None,
        "keep": _duration(settings.keep),
        "keep_results": _duration(settings.keep_results),
        "keep_trash": None
        if settings.keep_trash == TRASH_KEPT and "keep_trash" not in settings.own
        else _duration(settings.keep_trash),
        "retry_share": _share(settings.retry_share),
        "encrypt": "on" if settings.encrypt else None,
    }
    return {name: word for name, word in words.items() if word is not None}


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _share(value: float | None) -> str | None:
    if value is None:
        return OFF
    return None if value == RETRY_SHARE else f"{value:g}"


def _duration(value: Millis | None) -> str | None:
    return None if value is None else durations.format(value)


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
