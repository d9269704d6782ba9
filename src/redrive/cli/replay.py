"""`redrive letters replay`: send letters again."""

from __future__ import annotations

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option
from redrive.cli.acts import Wish, Words, act, check_choice, report
from redrive.core.durations import format as format_duration
from redrive.core.durations import parse
from redrive.core.verbs import Amended, Replay
from redrive.office.letters import check_reason

ABOUT = """Send dead letters again: same id, history kept, counters anew.

\b
Examples:
  redrive letters replay k3v9q2ma p7w4n8xd --reason 'mail server is back'
  redrive letters replay --where 'queue:emails error:*Timeout' --reason INC-88 --dry-run
  redrive letters replay --where 'cause:41fa*' --reason 'fixed in 1.4.2' --delay 5m --yes
  redrive letters list -q | redrive letters replay - --yes --reason 'fixed'

ID may be a unique prefix; - reads ids from stdin, one a line. If one of them is not found, nothing is sent.
With --where, or more than 100 letters, it asks first; without a terminal say --yes.
A letter with an order key goes back to its place, or to the end if the others went on.
In a pipe stdout has the ids that were sent again. Exit 9 if some were skipped, 6 if all were.
"""


@click.command("replay", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every letter that matches, instead of ids.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@click.option("--once", is_flag=True, help="One more attempt; the next error is final.")
@click.option("--delay", metavar="DURATION", default="0s", help="Not before this long from now, as in 5m.")
@click.option("--force", is_flag=True, help="Also those whose dedupe key a live item holds; they run without it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@json_option
@store_option
@verbose_option
def replay(
    *,
    ids: tuple[str, ...],
    where: str | None,
    reason: str,
    once: bool,
    delay: str,
    force: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    store: str,
) -> int:
    chosen = check_choice(ids, where)
    change = Replay("once" if once else "fresh", parse(delay, field="--delay"), force)
    why = check_reason(reason)

    async def send(app: Redrive, ids: list[str]) -> Amended:
        wait = f"{change.delay}ms"
        return await app.letters.replay(ids, reason=why, budget=change.budget, delay=wait, force=force)

    when = f" in {format_duration(change.delay)}" if change.delay else ""
    words = Words(
        noun="letter",
        would_be="sent again",
        question=f"Send {{count}} again{when}?",
        would="would send again",
        done="sent again",
        key="replayed",
    )
    wish = Wish(chosen, where, change, words, yes, dry_run, send)
    return report(act(store, wish), wish, as_json=as_json)
