"""`redrive queue prune`: remove what is over, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from redrive.cli.asking import Progress, confirm
from redrive.cli.exits import Exit
from redrive.cli.interrupts import Interrupts
from redrive.cli.output import counted, say, write_json
from redrive.engine.ids import new_id
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.verbs import QueueTally

ABOUT = """Remove resolved items of queues for good: done, cancelled, and letters in the trash. Never anything else.

\b
Examples:
  redrive queue prune emails --older 7d --reason 'quarterly clean-up'
  redrive queue prune emails --what trash --reason 'all of it was noise' --dry-run
  redrive queue prune --all --older 30d --reason retention --yes

Each leaves a tombstone: its id stays taken, and the audit knows who removed it and why. For retention without a
command, see `queue set --keep`. It asks first; without a terminal say --yes.
"""
WORDS = ("done", "cancelled", "trash")
BITE = 1000
TYPE_ABOVE = 1000


@click.command("prune", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("names", metavar="[QUEUE]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All queues.")
@click.option("--what", metavar="A,B", default="done,cancelled", show_default=True, help="done, cancelled, trash.")
@click.option("--older", metavar="DURATION", default="0s", help="Only what was enqueued longer ago than this.")
@reason_option()
@yes_option
@dry_run_option("Say how many it would be, and remove nothing.")
@json_option
@store_option
@verbose_option
def prune(
    *,
    names: tuple[str, ...],
    every: bool,
    what: str,
    older: str,
    reason: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    store: str,
) -> int:
    from redrive.core import durations
    from redrive.office.letters import check_reason

    if bool(names) == every:
        raise click.UsageError("name queues, or say --all, and not both", ctx=click.get_current_context())
    words, why = _words(what), check_reason(reason)
    age = durations.parse(older, field="--older")
    filters = visit(store, lambda app: _filters(app, names, words, age))
    count = visit(store, lambda app: _count(app, filters))
    items = counted(count, "item")
    if dry_run or not count:
        _report(count, as_json=as_json, dry_run=dry_run)
        return Exit.DONE
    wanted = {str(count), f"{count:,}"} if count > TYPE_ABOVE else {"y", "yes"}
    confirm(f"{items} would be removed for good", f"Remove {items} for good?", yes=yes, wanted=frozenset(wanted))
    removed, whole = visit(store, lambda app: _remove(app, filters, why, count), acts=True)
    _report(removed, as_json=as_json, dry_run=False)
    if whole:
        return Exit.DONE
    say(f"interrupted: {count - removed:,} were not reached; say it again to go on")
    return Exit.INTERRUPTED


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if word not in WORDS]
    if wrong or not words:
        what = f"{wrong[0]!r} is none of {', '.join(WORDS)}" if wrong else "it names nothing"
        raise ConfigError(what, field="--what", hint="only what is resolved can be removed")
    return words


async def _filters(app: Redrive, names: tuple[str, ...], words: list[str], age: int) -> list[str]:
    """One for each queue and kind: such a filter is answered by an index."""
    from redrive.cli.queue import row_of
    from redrive.core.durations import format as format_duration
    from redrive.core.filters import render
    from redrive.core.select import Match

    rows: tuple[QueueTally, ...] = (await app.tally()).queues
    queues = [row_of(rows, name).queue for name in names] if names else [row.queue for row in rows]
    kinds = {"done": "state:done", "cancelled": "state:cancelled", "trash": "state:dead disposition:trash"}
    old = f" age>{format_duration(age)}" if age else ""
    # A name may have signs in it that mean something in a filter, as * does.
    named = [render(Match("queue", "=", queue)) for queue in queues]
    return [f"{queue} {kinds[word]}{old}" for queue in named for word in words]


async def _count(app: Redrive, filters: list[str]) -> int:
    count = 0
    for each in filters:
        cursor = None
        while True:
            page = await app.find(each, limit=BITE, cursor=cursor)
            count += len(page)
            cursor = page.next
            if cursor is None:
                break
    return count


async def _remove(app: Redrive, filters: list[str], reason: str, count: int) -> tuple[int, bool]:
    """In bites, so that no worker waits for it; no more than were counted, and none after Ctrl-C."""
    progress, removed, request = Progress("removed", count), 0, new_id()
    try:
        with Interrupts("stopping after what is on its way; once more stops at once") as interrupts:
            for each in filters:
                while removed < count and not interrupts.heard:
                    gone = await app.prune(each, reason=reason, limit=min(BITE, count - removed), request_id=request)
                    removed += len(gone)
                    progress.add(len(gone))
                    if not gone:
                        break
    except click.Abort:
        say(f"removed {removed:,}, and perhaps what was on its way")
        raise
    finally:
        progress.end()
    return removed, removed == count or not interrupts.heard


def _report(count: int, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        write_json({"dry_run": dry_run, "removed": count})
    else:
        say(f"{'would remove' if dry_run else 'removed'} {count:,}")
