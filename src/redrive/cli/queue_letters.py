"""`redrive queue retry | drop`: the short way to replay or discard the letters of one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.selection import Choice, named
from redrive.core.acts import Discard, Replay
from redrive.core.filters import render
from redrive.core.select import Match
from redrive.errors import NotFound

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
RETRY = Words("sent again", "Send {count} again?", "would send again", key="replayed")
DROP = Words("dropped", "Drop {count}? They can be restored until the trash is emptied.", "would drop", key="discarded")


@click.command("retry", help=ABOUT_RETRY, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--all-dead", is_flag=True, help="Every open letter of the queue.")
@act_options("Say what would be sent, and send nothing.", reason="retried")
def retry(*, name: str, ids: tuple[str, ...], all_dead: bool, how: How) -> int:
    if bool(ids) == all_dead:
        raise click.UsageError("name items by id, or say --all-dead, and not both", ctx=click.get_current_context())
    choice = Choice(named(ids), render(Match("queue", "=", name)) if all_dead else None)
    wish = Wish(
        choice,
        Replay(),
        RETRY,
        lambda app, each: app.letters.replay(each, reason=how.reason, request_id=how.request),
        check=_all_in(name, choice.ids),
    )
    return act(how, wish)


@click.command("drop", help=ABOUT_DROP, context_settings=HELP_NAMES)
@click.argument("name", metavar="QUEUE")
@click.argument("ids", metavar="ID... | -", nargs=-1, required=True)
@act_options("Say what would be dropped, and drop nothing.")
def drop(*, name: str, ids: tuple[str, ...], how: How) -> int:
    choice = Choice(named(ids))
    wish = Wish(
        choice,
        Discard(),
        DROP,
        lambda app, each: app.letters.discard(each, reason=how.reason, request_id=how.request),
        ask_above=0,
        check=_all_in(name, choice.ids),
    )
    return act(how, wish)


def _all_in(name: str, ids: tuple[str, ...]) -> Callable[[Redrive], Awaitable[None]]:
    async def check(app: Redrive) -> None:
        from redrive.cli.queue import row_of

        row_of((await app.tally()).queues, name)
        for each in ids:
            queue = (await app.letters.get(each)).item.queue
            if queue != name:
                raise NotFound(f"{each} is not in {name!r} but in {queue!r}; nothing was done", hint="name its queue")

    return check
