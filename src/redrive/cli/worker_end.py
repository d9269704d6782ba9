"""`redrive worker drain` and `stop`: ask workers to end, wherever they run, and wait for it if wanted."""

from __future__ import annotations

import time
from asyncio import sleep as pause
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

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
from redrive.cli.exits import Exit
from redrive.cli.output import clean, on_terminal, say, write, write_json
from redrive.core.item import Millis
from redrive.core.verbs import WorkerBeat
from redrive.engine.ids import new_id
from redrive.errors import Conflict

if TYPE_CHECKING:
    from redrive.app import Redrive

F = TypeVar("F", bound=Callable[..., Any])

LOOK_EVERY = 0.5
AGES: Millis = 100 * 365 * 86_400_000

ABOUT = """Ask workers to end: {how}.

\b
Examples:
  redrive worker {verb} web-1-4711-k3v9q2ma --reason 'new release'
  redrive worker {verb} k3v9 --wait --reason 'new release'
  redrive worker {verb} --all --yes --wait=5m --reason 'the database moves'

A worker is named by its name, or a prefix of it or of its last part that fits one. It hears of it with its next beat,
within some ten seconds, wherever it runs; a supervisor does not start another in its place. --wait waits until all have
ended, exit 8 if that takes longer than it says. Exit 6 if a worker cannot hear any more.
"""
DRAIN = "they take nothing new, finish what runs within their grace, and are gone"
STOP = "they release at once what runs, uncharged, and are gone"


def _options(command: F) -> F:
    for option in reversed(
        (
            click.argument("workers", metavar="WORKER...", nargs=-1),
            click.option("--all", "everybody", is_flag=True, help="All that are alive."),
            click.option(
                "--wait",
                metavar="[DURATION]",
                is_flag=False,
                flag_value="",
                help="Wait until they have ended; at most so long, if it is said.",
            ),
            reason_option(),
            yes_option,
            dry_run_option("Only say who would be asked."),
            json_option,
            store_option,
            verbose_option,
        )
    ):
        command = option(command)
    return command


@click.command("drain", help=ABOUT.format(verb="drain", how=DRAIN), context_settings=HELP_NAMES)
@_options
def drain(**options: Any) -> int:
    return _end("drain", **options)


@click.command("stop", help=ABOUT.format(verb="stop", how=STOP), context_settings=HELP_NAMES)
@_options
def stop(**options: Any) -> int:
    return _end("stop", **options)


def _end(
    word: str,
    *,
    workers: tuple[str, ...],
    everybody: bool,
    wait: str | None,
    reason: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    store: str,
) -> int:
    patience = _patience(wait)
    if bool(workers) == everybody:
        raise click.UsageError("name workers, or say --all, and not both", ctx=click.get_current_context())
    chosen = visit(store, lambda app: _choose(app, workers))
    if everybody and chosen and not dry_run:
        count = f"{len(chosen)} worker{'s' * (len(chosen) != 1)}"
        confirm(f"{count} would be asked to {word}", f"Ask {count} to {word}?", yes=yes)
    if not dry_run:
        visit(store, lambda app: _ask(app, word, chosen, reason), acts=True)
    left = chosen
    if patience is not None and not dry_run:
        left = visit(store, lambda app: _wait(app, chosen, patience))
    _tell(word, chosen, left, dry_run=dry_run, as_json=as_json)
    return Exit.STILL_GOING if patience is not None and left and not dry_run else Exit.DONE


def _patience(wait: str | None) -> Millis | None:
    if wait is None:
        return None
    from redrive.core import durations

    return durations.parse(wait, field="--wait") if wait else AGES


async def _choose(app: Redrive, workers: tuple[str, ...]) -> list[str]:
    """Full names of those that can hear; nobody is asked if one of them cannot."""
    from redrive.engine.orders import can_hear
    from redrive.office.workers import check_can_hear, find

    beats = await app.workers()
    if not workers:
        return [beat.worker for beat in beats if can_hear(beat)]
    found = {beat.worker: beat for beat in (find(beats, text) for text in workers)}
    for beat in found.values():
        check_can_hear(beat)
    return list(found)


async def _ask(app: Redrive, word: str, chosen: list[str], reason: str) -> None:
    request = new_id()
    for worker in chosen:
        try:
            await app.stop_worker(worker, reason=reason, at_once=word == "stop", request_id=request)
        except Conflict:
            continue  # it ended while we were asking


async def _wait(app: Redrive, chosen: list[str], patience: Millis) -> list[str]:
    """Those that are still there when patience ends."""
    ends = time.monotonic() + patience / 1000
    while left := _still_there(await app.workers(), chosen):
        rest = ends - time.monotonic()
        if rest <= 0:
            break
        await pause(min(LOOK_EVERY, rest))
    return left


def _still_there(beats: Collection[WorkerBeat], chosen: list[str]) -> list[str]:
    from redrive.engine.orders import can_hear

    there = {beat.worker for beat in beats if can_hear(beat)}
    return [worker for worker in chosen if worker in there]


def _tell(word: str, chosen: list[str], left: list[str], *, dry_run: bool, as_json: bool) -> None:
    ended = [worker for worker in chosen if worker not in left]
    if as_json:
        write_json({"dry_run": dry_run, "asked": chosen, "ended": ended})
        return
    if not on_terminal():
        for worker in chosen:
            write(clean(worker))
    if not chosen:
        say("no workers")
    elif dry_run:
        say(f"{len(chosen)} would be asked to {word}: {', '.join(chosen)}")
    elif left:
        gone = f"; {len(ended)} ended, still there: {', '.join(left)}" if ended or len(left) < len(chosen) else ""
        say(f"asked {len(chosen)} to {word}: {', '.join(chosen)}{gone}")
    else:
        say(f"{len(ended)} ended: {', '.join(ended)}")
