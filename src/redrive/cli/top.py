"""`redrive top`: the fleet at work, redrawn until q or Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES, store_option, verbose_option, visit
from redrive.cli.exits import Exit
from redrive.cli.output import MISSING, bold, brief, clean, columns, iso, on_terminal, write
from redrive.cli.status import no_worker_for, show_causes
from redrive.cli.watch import LEAST, redraw

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.office.overview import Overview

ABOUT = """Watch queues, workers and causes live. q or Ctrl-C leaves.

\b
Examples:
  redrive top
  redrive top --every 500ms

DONE/S and DEAD/S are per second, between two looks. It needs a terminal; without one, see `redrive status --watch`.
"""
OTHER_SCREEN, BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
WORKERS = 12


@click.command("top", help=ABOUT, context_settings=HELP_NAMES)
@click.option("--every", metavar="DURATION", default="1s", show_default=True, help="From one look to the next.")
@store_option
@verbose_option
def top(*, every: str, store: str) -> int:
    from redrive.core import durations

    pause = max(LEAST, durations.parse(every, field="--every"))
    if not on_terminal() or not sys.stdin.isatty():
        raise click.UsageError("it needs a terminal; see redrive status --watch", ctx=click.get_current_context())
    try:
        visit(store, lambda app: _watch(app, pause))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.DONE


async def _watch(app: Redrive, pause: int) -> None:
    leaving = asyncio.Event()

    def hear() -> None:
        # Not through sys.stdin, which would read ahead, and keep keys that nobody is told of.
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or b"q" in keys.lower():
            leaving.set()

    before = view = await app.overview()
    with _own_screen():
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hear)
        while not leaving.is_set():
            redraw(lambda now=view, then=before: _draw(now, then))  # type: ignore[misc]
            try:
                async with asyncio.timeout(pause / 1000):
                    await leaving.wait()
            except TimeoutError:
                before, view = view, await app.overview()


@contextmanager
def _own_screen() -> Iterator[None]:
    """What was on the terminal is there again afterwards, and keys are heard without Enter."""
    kept = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write(OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(BACK)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)


def _draw(view: Overview, before: Overview) -> None:
    write(f"{bold(clean(view.info.location))}  {iso(view.at)}  q leaves")
    write("")
    columns(*_queues(view, before))
    alive = [beat for beat in view.workers if beat.alive]
    write("")
    rows = [
        [beat.worker, str(beat.facts.running), f"{brief(view.at - beat.seen_at)} ago", ", ".join(beat.facts.queues)]
        for beat in alive[:WORKERS]
    ]
    columns(["WORKER", "RUNNING", "SEEN", "QUEUES"], rows)
    if len(alive) > WORKERS:
        write(f"… and {len(alive) - WORKERS} more")
    if not alive:
        write("no live workers")
    show_causes(view)


def _queues(view: Overview, before: Overview) -> tuple[list[str], list[list[str]]]:
    seconds = max(0.001, (view.at - before.at) / 1000)
    earlier = {row.name: row.tally for row in before.queues}
    rows = []
    for queue in view.queues:
        row = queue.tally
        then = earlier.get(row.queue, row)
        done, dead = (row.done - then.done) / seconds, (row.open - then.open) / seconds
        counts = [str(row.ready), str(row.held + row.parked), str(row.leased), f"{max(0.0, done):.1f}", str(row.open)]
        oldest = MISSING if queue.oldest is None else brief(queue.oldest)
        notes = ["PAUSED"] * row.paused + ["NO WORKER"] * queue.unattended + no_worker_for(queue) + [*queue.reached]
        rows.append([row.queue, *counts, f"{max(0.0, dead):.1f}", oldest, str(queue.workers), ", ".join(notes)])
    header = ["QUEUE", "READY", "HELD", "RUNNING", "DONE/S", "DEAD", "DEAD/S", "OLDEST", "WORKERS", "NOTE"]
    return header, rows
