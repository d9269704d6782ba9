"""`redrive letters replay`: send letters again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.selection import Choice, choice_options, known_queue
from redrive.core.durations import format as format_duration
from redrive.core.durations import parse
from redrive.core.rates import format as format_rate
from redrive.core.rates import parse as parse_rate
from redrive.core.verbs import Amended, Replay
from redrive.engine.ids import new_id

if TYPE_CHECKING:
    from redrive.app import Redrive

ABOUT = """Send dead letters again: same id, history kept, counters anew.

\b
Examples:
  redrive letters replay k3v9q2ma p7w4n8xd --reason 'mail server is back'
  redrive letters replay --where 'queue:emails error:*Timeout' --reason INC-88 --dry-run
  redrive letters replay --where 'cause:41fa*' --reason 'fixed in 1.4.2' --delay 5m --yes
  redrive letters replay --where 'queue:emails' --pace 100/min --reason 'gently' --yes
  redrive letters replay --view refunds --to refunds-slow --once --reason 'one by one'
  redrive letters list --all -q | redrive letters replay - --yes --reason 'fixed'

ID may be a unique prefix; - reads ids from stdin, one a line. If one of them is not found, nothing is sent.
With --where, --view, --all or more than 100 letters it asks first; without a terminal say --yes.
A letter with an order key goes back to its place, or to the end if the others went on.
What was put away or moved while it asked is skipped.
In a pipe stdout has the ids that were sent again. Exit 9 if some were skipped, 6 if all were.
"""


@click.command("replay", help=ABOUT, context_settings=HELP_NAMES)
@choice_options
@click.option("--once", is_flag=True, help="One more attempt; the next error is final.")
@click.option("--delay", metavar="DURATION", default="0s", help="Not before this long from now, as in 5m.")
@click.option(
    "--pace",
    metavar="RATE",
    help="No faster than this, as in 100/min: the others become due later, also when this has ended.",
)
@click.option("--to", "queue", metavar="QUEUE", help="To another queue than their own.")
@click.option("--new", is_flag=True, help="With --to, also if there is no such queue yet.")
@click.option("--force", is_flag=True, help="Also those whose dedupe key a live item holds; they run without it.")
@click.option(
    "--request", metavar="ID", help="Name of this act: repeated, nothing is sent twice, and it says what was already."
)
@act_options("Say what would be sent, and send nothing.")
def replay(
    *,
    choice: Choice,
    once: bool,
    delay: str,
    pace: str | None,
    queue: str | None,
    new: bool,
    force: bool,
    request: str | None,
    how: How,
) -> int:
    change = Replay("once" if once else "fresh", parse(delay, field="--delay"), force, queue or "")
    name = request or new_id()
    rate = None if pace is None else parse_rate(pace, field="--pace")
    sent = 0

    async def send(app: Redrive, ids: list[str]) -> Amended:
        nonlocal sent
        wait = change.delay if rate is None else change.delay + sent * rate.interval // 1000
        sent += len(ids)
        return await app.letters.replay(
            ids,
            reason=how.reason,
            budget=change.budget,
            delay=f"{wait}ms",
            force=force,
            queue=queue,
            pace=rate,
            request_id=name,
        )

    when = f" in {format_duration(change.delay)}" if change.delay else ""
    when += f", {format_rate(rate)}" if rate is not None else ""
    where = f" to {queue}" if queue else ""
    words = Words("sent again", f"Send {{count}} again{where}{when}?", "would send again", key="replayed")
    return act(how, Wish(choice, change, words, send, check=known_queue(queue, new=new)))
