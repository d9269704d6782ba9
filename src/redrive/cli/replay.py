"""`redrive letters replay`: send letters again. What was counted and confirmed is exactly what moves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from msgspec import Struct

from redrive.app import Redrive
from redrive.cli.access import HELP_NAMES, json_option, store_option, verbose_option, visit
from redrive.cli.exits import Exit, Refused
from redrive.cli.output import clean, on_terminal, say, write, write_json
from redrive.core.durations import format as format_duration
from redrive.core.durations import parse
from redrive.core.filters import parse as parse_filter
from redrive.core.item import Item, short_id
from redrive.core.verbs import Amended, Replay, Skipped, refusal
from redrive.errors import ConfigError, NotFound
from redrive.office.letters import check_reason
from redrive.stores.base import PAGE_LIMIT

ASK_ABOVE = 100
TYPE_ABOVE = 1000
SAMPLE = 5
ABOUT = """Send dead letters again: same id, history kept, counters anew.

\b
Examples:
  redrive letters replay k3v9q2ma p7w4n8xd --reason 'mail server is back'
  redrive letters replay --where 'queue:emails error:*Timeout' --reason INC-88 --dry-run
  redrive letters replay --where 'cause:41fa*' --reason 'fixed in 1.4.2' --delay 5m --yes
  redrive letters list -q | redrive letters replay - --yes --reason 'fixed'

ID may be a unique prefix; - reads ids from stdin, one a line. If one of them is not found, nothing is sent.
With --where, or more than 100 letters, it asks first; without a terminal say --yes.
In a pipe stdout has the ids that were sent again. Exit 9 if some were skipped, 6 if all were.
"""


class Chosen(Struct, frozen=True):
    """What the question and the dry run need to know of a letter. The payload is not kept: there may be many."""

    id: str
    queue: str
    error: str
    refused: str | None


class Wish(Struct, frozen=True):
    ids: tuple[str, ...]
    where: str | None
    change: Replay
    reason: str
    yes: bool
    dry_run: bool


@click.command("replay", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("ids", metavar="[ID]... | -", nargs=-1)
@click.option("--where", metavar="FILTER", help="Every letter that matches, instead of ids.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit.")
@click.option("--once", is_flag=True, help="One more attempt; the next error is final.")
@click.option("--delay", metavar="DURATION", default="0s", help="Not before this long from now, as in 5m.")
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
    yes: bool,
    dry_run: bool,
    as_json: bool,
    store: str,
) -> int:
    if bool(ids) == (where is not None):
        raise click.UsageError("name letters by id, or by --where, and not both", ctx=click.get_current_context())
    if where is not None and not where.strip():
        raise ConfigError("it is empty", field="--where", hint="to mean every open letter, say disposition:open")
    parse_filter(where or "")  # a bad filter is said before the store is looked for
    change = Replay("once" if once else "fresh", parse(delay, field="--delay"))
    wish = Wish(tuple(_named(ids)), where, change, check_reason(reason), yes, dry_run)
    return _report(_replay(store, wish), wish, as_json=as_json)


def _named(ids: Sequence[str]) -> Iterable[str]:
    """Each once, in the order given; `-` stands for the first word of every line of stdin."""
    named: list[str] = []
    for word in ids:
        named += [line.split()[0] for line in sys.stdin if line.strip()] if word == "-" else [word]
    return dict.fromkeys(named)


def _replay(url: str, wish: Wish) -> Amended:
    """The question is asked between two visits to the store: nothing is held open while somebody thinks."""
    chosen = visit(url, lambda app: _choose(app, wish))
    if wish.dry_run:
        skipped = tuple(Skipped(one.id, one.refused) for one in chosen if one.refused is not None)
        return Amended(tuple(one.id for one in chosen if one.refused is None), (), skipped)
    if not chosen:
        return Amended()
    if wish.where is not None or len(chosen) > ASK_ABOVE:
        _confirm(chosen, wish)
    ids = [one.id for one in chosen]
    return visit(url, lambda app: _send(app, ids, wish))


async def _send(app: Redrive, ids: list[str], wish: Wish) -> Amended:
    budget, delay = wish.change.budget, f"{wish.change.delay}ms"
    return await app.letters.replay(ids, reason=wish.reason, budget=budget, delay=delay)


async def _choose(app: Redrive, wish: Wish) -> list[Chosen]:
    return await _by_ids(app, wish) if wish.where is None else await _by_filter(app, wish.where, wish.change)


async def _by_filter(app: Redrive, where: str, change: Replay) -> list[Chosen]:
    chosen: list[Chosen] = []
    cursor = None
    while True:
        page = await app.letters.find(where, limit=PAGE_LIMIT, cursor=cursor)
        chosen += [_chosen(item, change) for item in page]
        cursor = page.next
        if cursor is None:
            return chosen


async def _by_ids(app: Redrive, wish: Wish) -> list[Chosen]:
    chosen: dict[str, Chosen] = {}
    for text in wish.ids:
        try:
            item = (await app.letters.get(text)).item
        except NotFound as error:
            raise NotFound(f"{error.message}; nothing was sent again", hint=error.hint) from None
        chosen[item.id] = _chosen(item, wish.change)
    return list(chosen.values())


def _chosen(item: Item, change: Replay) -> Chosen:
    letter = item.letter
    refused = refusal(change, item.state, letter.disposition if letter else None)
    return Chosen(item.id, item.queue, letter.failure.type if letter else "", refused)


def _confirm(chosen: Sequence[Chosen], wish: Wish) -> None:
    """Raises Refused unless somebody says yes."""
    if wish.yes:
        return
    count = f"{len(chosen):,} letter{'s' * (len(chosen) != 1)}"
    if not sys.stdin.isatty():
        raise Refused(
            f"{count} would be sent again, and there is no terminal to ask", hint="add --yes, or look with --dry-run"
        )
    for one in chosen[:SAMPLE]:
        say(f"  {short_id(one.id)}  {one.queue}  {one.error}")
    if len(chosen) > SAMPLE:
        say(f"  … and {len(chosen) - SAMPLE:,} more")
    when = f" in {format_duration(wish.change.delay)}" if wish.change.delay else ""
    if len(chosen) > TYPE_ABOVE:
        question, wanted = (
            f"Send {count} again{when}? Type the number to go on: ",
            {str(len(chosen)), f"{len(chosen):,}"},
        )
    else:
        question, wanted = f"Send {count} again{when}? [y/N] ", {"y", "yes"}
    click.echo(question, err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in wanted:
        raise Refused("not confirmed; nothing was sent again")


def _report(done: Amended, wish: Wish, *, as_json: bool) -> int:
    sent = (*done.changed, *done.already)
    for left in done.skipped:
        say(f"skipped {left.id}: {left.reason}")
    if as_json:
        write_json(_as_object(done, wish))
    else:
        if not on_terminal():
            for one in sent:
                write(clean(one))
        would = "would send again" if wish.dry_run else "sent again"
        say(f"{would} {len(sent):,}" + (f", skipped {len(done.skipped):,}" if done.skipped else ""))
    if not done.skipped:
        return Exit.DONE
    return Exit.PARTLY if sent else Exit.CONFLICT


def _as_object(done: Amended, wish: Wish) -> dict[str, Any]:
    return {
        "dry_run": wish.dry_run,
        "replayed": [*done.changed, *done.already],
        "skipped": [{"id": one.id, "reason": one.reason} for one in done.skipped],
    }
