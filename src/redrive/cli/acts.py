"""Acts on many items: choose, ask, do, report. What was counted and confirmed is exactly what moves."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import click
from msgspec import Struct

from redrive.app import Redrive
from redrive.cli.access import visit
from redrive.cli.exits import Exit, Refused
from redrive.cli.output import clean, on_terminal, say, write, write_json
from redrive.core.filters import parse as parse_filter
from redrive.core.item import Item, short_id
from redrive.core.verbs import Amended, Change, Skipped, refusal
from redrive.errors import ConfigError, NotFound
from redrive.stores.base import PAGE_LIMIT

ASK_ABOVE = 100
TYPE_ABOVE = 1000
SAMPLE = 5


class Words(Struct, frozen=True):
    """How an act speaks: "2 letters would be sent again", "Send 2 letters again?", "sent again 2", its key in JSON."""

    noun: str
    would_be: str
    question: str
    would: str
    done: str
    key: str


class Chosen(Struct, frozen=True):
    """What the question and the dry run need to know of an item. The payload is not kept: there may be many."""

    id: str
    queue: str
    error: str
    refused: str | None


class Wish(Struct, frozen=True):
    """`do` acts on the ids that were chosen; `change` tells which of them it will refuse."""

    ids: tuple[str, ...]
    where: str | None
    change: Change
    words: Words
    yes: bool
    dry_run: bool
    do: Callable[[Redrive, list[str]], Awaitable[Amended]]


def check_choice(ids: Sequence[str], where: str | None) -> tuple[str, ...]:
    """The ids named; what cannot be meant is said before the store is looked for."""
    if bool(ids) == (where is not None):
        raise click.UsageError("name letters by id, or by --where, and not both", ctx=click.get_current_context())
    if where is not None and not where.strip():
        raise ConfigError("it is empty", field="--where", hint="to mean every open letter, say disposition:open")
    parse_filter(where or "")
    return named(ids)


def named(ids: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order given; `-` stands for the first word of every line of stdin."""
    words: list[str] = []
    for word in ids:
        words += [line.split()[0] for line in sys.stdin if line.strip()] if word == "-" else [word]
    return tuple(dict.fromkeys(words))


def act(url: str, wish: Wish) -> Amended:
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
    return visit(url, lambda app: wish.do(app, ids))


async def _choose(app: Redrive, wish: Wish) -> list[Chosen]:
    return await _by_ids(app, wish) if wish.where is None else await _by_filter(app, wish.where, wish.change)


async def _by_filter(app: Redrive, where: str, change: Change) -> list[Chosen]:
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
            raise NotFound(f"{error.message}; nothing was {wish.words.would_be}", hint=error.hint) from None
        chosen[item.id] = _chosen(item, wish.change)
    return list(chosen.values())


def _chosen(item: Item, change: Change) -> Chosen:
    letter = item.letter
    refused = refusal(change, item.state, letter.disposition if letter else None)
    return Chosen(item.id, item.queue, letter.failure.type if letter else "", refused)


def _confirm(chosen: Sequence[Chosen], wish: Wish) -> None:
    """Raises Refused unless somebody says yes."""
    if wish.yes:
        return
    words = wish.words
    count = f"{len(chosen):,} {words.noun}{'s' * (len(chosen) != 1)}"
    if not sys.stdin.isatty():
        raise Refused(
            f"{count} would be {words.would_be}, and there is no terminal to ask",
            hint="add --yes, or look with --dry-run",
        )
    for one in chosen[:SAMPLE]:
        say(f"  {short_id(one.id)}  {one.queue}  {one.error}")
    if len(chosen) > SAMPLE:
        say(f"  … and {len(chosen) - SAMPLE:,} more")
    question, wanted = f"{words.question.format(count=count)} [y/N] ", {"y", "yes"}
    if len(chosen) > TYPE_ABOVE:
        question = f"{words.question.format(count=count)} Type the number to go on: "
        wanted = {str(len(chosen)), f"{len(chosen):,}"}
    click.echo(question, err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in wanted:
        raise Refused(f"not confirmed; nothing was {words.would_be}")


def report(done: Amended, wish: Wish, *, as_json: bool) -> int:
    changed = (*done.changed, *done.already)
    for left in done.skipped:
        say(f"skipped {left.id}: {left.reason}")
    if as_json:
        write_json(_as_object(changed, done.skipped, wish))
    else:
        if not on_terminal():
            for one in changed:
                write(clean(one))
        said = wish.words.would if wish.dry_run else wish.words.done
        say(f"{said} {len(changed):,}" + (f", skipped {len(done.skipped):,}" if done.skipped else ""))
    if not done.skipped:
        return Exit.DONE
    return Exit.PARTLY if changed else Exit.CONFLICT


def _as_object(changed: Iterable[str], skipped: Iterable[Skipped], wish: Wish) -> dict[str, Any]:
    return {
        "dry_run": wish.dry_run,
        wish.words.key: list(changed),
        "skipped": [{"id": one.id, "reason": one.reason} for one in skipped],
    }
