"""Options that name items: ids and prefixes, ids from stdin, a filter, a saved view, or all."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.core.families import is_family, served
from redrive.core.filters import parse as parse_filter
from redrive.engine.registry import unknown_queue
from redrive.errors import ConfigError
from redrive.office.selection import Choice

if TYPE_CHECKING:
    from redrive.app import Redrive

__all__ = ["Choice", "choice_options", "known_queue", "named"]

F = TypeVar("F", bound=Callable[..., Any])


def choice_options(command: F) -> F:
    """[ID]... or -, --where, --view, --all; the command gets them as one `choice`."""

    @wraps(command)
    def chosen(*args: Any, ids: tuple[str, ...], where: str | None, view: str | None, every: bool, **rest: Any) -> Any:
        return command(*args, choice=_checked(ids, where, view, every=every), **rest)

    wrapped: Any = chosen
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    made: F = wrapped
    return made


_OPTIONS = (
    click.argument("ids", metavar="[ID]... | -", nargs=-1),
    click.option("--where", metavar="FILTER", help="Every letter that matches, instead of ids."),
    click.option("--view", metavar="NAME", help="Every letter of a saved view; with --where, those that match too."),
    click.option("--all", "every", is_flag=True, help="Every open letter."),
)


def _checked(ids: Sequence[str], where: str | None, view: str | None, *, every: bool) -> Choice:
    """What cannot be meant is said before the store is looked for."""
    by_set = where is not None or view is not None
    if bool(ids) + by_set + every != 1:
        said = "name letters by id, by --where or --view, or say --all, and only one of these"
        raise click.UsageError(said, ctx=click.get_current_context())
    if where is not None and not where.strip():
        raise ConfigError("it is empty", field="--where", hint="to mean every open letter, say --all")
    parse_filter(where or "")
    return Choice(named(ids), "" if every else where, view)


def known_queue(queue: str | None, *, new: bool) -> Callable[[Redrive], Awaitable[None]] | None:
    """A check that letters do not go, by a slip of the fingers, where nobody works."""
    if queue is None or new:
        return None

    async def check(app: Redrive) -> None:
        names = [row.queue for row in (await app.tally(members=False)).queues]
        if is_family(queue) or not served(names, queue):
            raise unknown_queue(queue, names, "--new makes it")

    return check


def named(ids: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order given; `-` stands for the first word of every line of stdin."""
    words: list[str] = []
    for word in ids:
        words += [line.split()[0] for line in sys.stdin if line.strip()] if word == "-" else [word]
    return tuple(dict.fromkeys(words))
