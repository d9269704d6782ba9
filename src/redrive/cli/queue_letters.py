"""`redrive queue retry | drop`: the short way to replay or discard the letters of one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from redrive.cli.access import (
    HELP_NAMES,
    dry_run_option,
    json_option,
    reason_option,
    store_option,
    verbose_option,
    yes_option,
)
from redrive.cli.acts import Wish, Words, act, report
from redrive.cli.choosing import named
from redrive.core.filters import render
from redrive.core.select import Match
from redrive.core.verbs import Discard, Replay
from redrive.errors import NotFound
from redrive.office.letters import check_reason

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT_RETRY = """Send dead items of a queue again, all of them or by id: as `letters replay`, which has more options.

\b
Examples:
  redrive queue retry payments k3v9q2ma p7w4n8xd
  redrive queue retry payments --all-dead --reason 'the bank is back'

With --all-dead, or more than 100, it asks first; without a terminal say --yes. In a pipe stdout has the ids. Exit 9 if
some were skipped, 6 if all were, 5 if one is not in this queue: then none is sent.
"""
ABOUT_DROP = """Throw dead items of a queue into the trash: as `letters discard`. `letters restore` brings them back.

\b
Examples:
  redrive queue drop payments k3v9q2ma --reason 'paid by hand'

It asks first; without a terminal say --yes. In a pipe stdout has the ids. Exit 9 if some were skipped, 6 if all were, 5
if one is not in this queue: then none is dropped.
"""
RETRY = Words(
    noun="letter",
    would_be="sent again",
    question="Send {count} again?",
    would="would send again",
    done="sent again",
    key="replayed",
)
DROP = Words(
    noun="letter",
    would_be="dropped",
    question="Drop {count}? They can be restored until the trash is emptied.",
    would="would drop",
    done="dropped",
    key="discarded",
)


@click.command("retry", help=ABOUT_RETRY, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--all-dead", is_flag=True, help="Every open letter of the queue.")
@reason_option(default="retried")
@yes_option
@dry_run_option("Say what would be sent, and send nothing.")
@json_option
@store_option
@verbose_option
def retry(
    *,
    name: str,
    ids: tuple[str, ...],
    all_dead: bool,
    reason: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    store: str,
) -> int:
    if bool(ids) == all_dead:
        raise click.UsageError("name items by id, or say --all-dead, and not both", ctx=click.get_current_context())
    why, chosen = check_reason(reason), named(ids)
    wish = Wish(
        ids=chosen,
        where=render(Match("queue", "=", name)) if all_dead else None,
        change=Replay(),
        words=RETRY,
        yes=yes,
        dry_run=dry_run,
        do=lambda app, each: app.letters.replay(each, reason=why),
        check=_all_in(name, chosen),
    )
    return report(act(store, wish), wish, as_json=as_json)


@click.command("drop", help=ABOUT_DROP, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.argument("ids", metavar="ID... | -", nargs=-1, required=True)
@reason_option()
@yes_option
@dry_run_option("Say what would be dropped, and drop nothing.")
@json_option
@store_option
@verbose_option
def drop(*, name: str, ids: tuple[str, ...], reason: str, yes: bool, dry_run: bool, as_json: bool, store: str) -> int:
    why, chosen = check_reason(reason), named(ids)
    wish = Wish(
        ids=chosen,
        where=None,
        change=Discard(),
        words=DROP,
        yes=yes,
        dry_run=dry_run,
        do=lambda app, each: app.letters.discard(each, reason=why),
        ask_above=0,
        check=_all_in(name, chosen),
    )
    return report(act(store, wish), wish, as_json=as_json)


def _all_in(name: str, ids: tuple[str, ...]) -> Callable[[Redrive], Awaitable[None]]:
    async def check(app: Redrive) -> None:
        from redrive.cli.queue import row_of

        row_of((await app.tally()).queues, name)
        for each in ids:
            queue = (await app.letters.get(each)).item.queue
            if queue != name:
                raise NotFound(f"{each} is not in {name!r} but in {queue!r}; nothing was done", hint="name its queue")

    return check
