"""`redrive letters replay`: send letters again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import HELP_NAMES
from redrive.cli.bulk import How, Wish, Words, act, act_options
from redrive.cli.selection import Choice, choice_options, known_queue
from redrive.core.acts import Amended, Replay
from redrive.core.durations import format as format_duration
from redrive.core.durations import parse
from redrive.core.rates import format as format_rate
from redrive.core.rates import parse as parse_rate
from redrive.office.bulk import Done

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
  redrive letters replay --where 'queue:refunds' --dedupe-by order.id --reason 'each order once' --yes
  redrive letters replay --where 'queue:refunds' --transform repairs:new_form --reason 'form 2' --dry-run
  redrive letters list --all -q | redrive letters replay - --yes --reason 'fixed'

ID may be a unique prefix; - reads ids from stdin, one a line. If one of them is not found, nothing is sent.
With --where, --view, --all or more than 100 letters it asks first; without a terminal say --yes.
A letter with an order key goes back to its place, or to the end if the others went on. Of a filter the longest dead
goes first; ids go in the order given.
What was put away or moved while it asked is skipped.
With --dedupe-by only the first of the letters with one value is sent, the longest dead of a filter; the others are
duplicates, now and for 90 days. With --transform a letter ends, and a new item with the payload that the function
returns is sent instead, in the same write; if the function raises, the letter is kept. A dry run calls it, too.
With --pace or --background the letters are reserved, and stay letters until a worker sends them: redrive replay shows,
pauses, cancels and undoes it. With --transform the workers import the function, and the replay pauses if one cannot.
In a pipe stdout has the ids that were sent again. Exit 9 if some were skipped or kept, 6 if all were.
"""


@click.command("replay", help=ABOUT, context_settings=HELP_NAMES)
@choice_options
@click.option("--once", is_flag=True, help="One more attempt; the next error is final.")
@click.option("--delay", metavar="DURATION", default="0s", help="Not before this long from now, as in 5m.")
@click.option(
    "--pace",
    metavar="RATE",
    help="No faster than this, as in 100/min: workers send them, also when this has ended.",
)
@click.option("--background", is_flag=True, help="Let workers send them, as fast as the store takes them.")
@click.option("--to", "queue", metavar="QUEUE", help="To another queue than their own.")
@click.option("--new", is_flag=True, help="With --to, also if there is no such queue yet.")
@click.option("--force", is_flag=True, help="Also those whose dedupe key a live item holds; they run without it.")
@click.option("--dedupe-by", metavar="PATH", help="Only the first with each value at this path of the payload.")
@click.option("--transform", metavar="MODULE:FUNCTION", help="Send what this function makes of the payload instead.")
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
    background: bool,
    queue: str | None,
    new: bool,
    force: bool,
    dedupe_by: str | None,
    transform: str | None,
    request: str | None,
    how: How,
) -> int:
    change = Replay("once" if once else "fresh", parse(delay, field="--delay"), force, queue or "")
    name = request or how.request
    rate = None if pace is None else parse_rate(pace, field="--pace")
    in_background = (background or rate is not None) and not how.dry_run
    function = None
    if transform is not None:
        from redrive.cli.load import load_function

        function = load_function(transform, field="transform")
    by_payload = dedupe_by is not None or function is not None
    if by_payload:
        from redrive.office.replay.functions import check_functions

        if once and function is not None:
            raise click.UsageError("--once cannot be used with --transform", ctx=click.get_current_context())
        check_functions(dedupe_by, function, change)

    async def send(app: Redrive, ids: list[str]) -> Done:
        done = await app.letters.replay(
            ids,
            reason=how.reason,
            budget=change.budget,
            delay=f"{change.delay}ms",
            force=force,
            queue=queue,
            pace=rate,
            background=background,
            dedupe_by=dedupe_by,
            transform=transform if in_background else function,
            dry_run=how.dry_run,
            request_id=name,
        )
        duplicates = done.duplicates if by_payload and not in_background else None
        changed = done.reserved if in_background else done.replayed
        return Done(Amended(changed, done.already, done.skipped), duplicates=duplicates, kept=done.kept)

    when = f" in {format_duration(change.delay)}" if change.delay else ""
    when += f", {format_rate(rate)}" if rate is not None else ""
    where = f" to {queue}" if queue else ""
    words = Words("sent again", f"Send {{count}} again{where}{when}?", "would send again", key="replayed")
    if in_background:
        words = Words(
            "reserved", words.question, "would send again", "sent again", replay=name, none="nothing to replay"
        )
    check = known_queue(queue, new=new)
    return act(how, Wish(choice, change, words, send, check=check, by_payload=by_payload))
