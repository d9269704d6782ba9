"""`redrive letters skip`: let go on what waits behind a dead head."""

from __future__ import annotations

import click

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option
from redrive.cli.acts import Wish, Words, act, check_choice, report
from redrive.core.verbs import Amended, Skip
from redrive.office.letters import check_reason

ABOUT = """Let go on what waits behind dead letters under their order keys. The letters stay.

\b
Examples:
  redrive letters skip k3v9q2ma --reason 'customer 9 need not wait for it'
  redrive letters skip --where 'queue:payments key:cust-9' --reason INC-88 --dry-run

Whoever goes on is marked with the gap, which item show tells. To repair the letter and keep the order, replay it
instead; it then goes before the others. A letter that holds nobody up is skipped over, and named on stderr.
ID may be a unique prefix; - reads ids from stdin, one a line. With --where, or more than 100 letters, it asks first;
without a terminal say --yes. In a pipe stdout has the ids that let go. Exit 9 if some were skipped, 6 if all were.
"""
WORDS = Words(
    noun="letter",
    would_be="passed",
    question="Let go on what waits behind {count}?",
    would="would pass",
    done="passed",
    key="passed",
)


@click.command("skip", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every letter that matches, instead of ids.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say which letters it is about, and do nothing.")
@json_option
@store_option
@verbose_option
def skip(
    *, ids: tuple[str, ...], where: str | None, reason: str, yes: bool, dry_run: bool, as_json: bool, store: str
) -> int:
    chosen, why = check_choice(ids, where), check_reason(reason)

    async def pass_over(app: Redrive, ids: list[str]) -> Amended:
        return await app.letters.skip(ids, reason=why)

    wish = Wish(chosen, where, Skip(), WORDS, yes, dry_run, pass_over)
    return report(act(store, wish), wish, as_json=as_json)
