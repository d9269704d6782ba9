"""Questions before what cannot be undone, and how far long work has come. Both on stderr, both for people only."""

from __future__ import annotations

import sys
import time

import click

from redrive.cli.exits import Refused, Talk
from redrive.cli.output import clean, cut

QUIET = 0.5
"""Seconds of work that need no progress."""
STEP = 0.1


def can_ask() -> bool:
    """There is a terminal to type at, and --no-input was not said."""
    context = click.get_current_context(silent=True)
    talk = context.obj if context is not None else None
    return sys.stdin is not None and sys.stdin.isatty() and not (isinstance(talk, Talk) and not talk.ask)


def confirm(what: str, question: str, *, yes: bool, wanted: frozenset[str] = frozenset({"y", "yes"})) -> None:
    """Raises Refused unless somebody says so. `what` is what would happen, `question` ends with a question mark."""
    if yes:
        return
    if not can_ask():
        raise Refused(f"{what}, and there is no terminal to ask", hint="add --yes")
    ending = "[y/N] " if "y" in wanted else "Type the number to go on: "
    click.echo(f"{clean(question)} {ending}", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in wanted:
        raise Refused("not confirmed; nothing was changed")


class Progress:
    """One line on stderr that is written over, only on a terminal and only if the work takes a while."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._next = time.monotonic() + QUIET
        self._shown = False

    def add(self, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if now >= self._next and sys.stderr is not None and sys.stderr.isatty():
            self._next = now + STEP
            self._shown = True
            of = "" if self._total is None else f" of {self._total:,}"
            click.echo(f"\r{cut(clean(f'{self._what} {self._done:,}{of}'), 78)}\x1b[K", err=True, nl=False)

    def end(self) -> None:
        """Wipes the line."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)
