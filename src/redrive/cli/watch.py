"""`--watch`: look again and again. A terminal is redrawn in place, a pipe gets one answer after the other."""

from __future__ import annotations

import io
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.access import visit
from redrive.cli.exits import Exit
from redrive.cli.output import on_terminal, say

if TYPE_CHECKING:
    from redrive.app import Redrive

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
LEAST = 200
"""Milliseconds. Nobody can read faster, and the store has better things to do."""
HOME, REST_OF_LINE, REST_OF_SCREEN, NEW_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J\x1b[H"


def watch_option(command: F) -> F:
    """-w, --watch[=2s]; the command gets `watch` in milliseconds, or None."""
    return click.option(
        "-w",
        "--watch",
        metavar="[DURATION]",
        is_flag=False,
        flag_value="2s",
        callback=_every,
        help="Look again every 2s, or as --watch=5s says, until Ctrl-C.",
    )(command)


def _every(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    from redrive.core import durations
    from redrive.errors import ConfigError

    every = durations.parse(value, field="--watch")
    if every < LEAST:
        hint = f"use {durations.format(LEAST)} or more"
        raise ConfigError(f"{value} is too often", field="--watch", hint=hint)
    return every


def look(url: str, ask: Callable[[Redrive], Awaitable[T]], draw: Callable[[T], None], watch: int | None) -> Exit:
    """Ask and draw, once or until Ctrl-C. Errors of a store that was there before are told, and it is asked again."""
    if watch is None:
        draw(visit(url, ask))
        return Exit.DONE
    every = watch

    async def again(app: Redrive) -> None:
        import asyncio

        answer = await ask(app)
        if on_terminal():
            sys.stdout.write(NEW_SCREEN)
        while True:
            redraw(lambda answer=answer: draw(answer))  # type: ignore[misc]
            await asyncio.sleep(every / 1000)
            answer = await _patiently(app, ask, every)

    try:
        visit(url, again)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return Exit.DONE


async def _patiently(app: Redrive, ask: Callable[[Redrive], Awaitable[T]], every: int) -> T:
    import asyncio

    from redrive.errors import StoreUnavailable

    while True:
        try:
            return await ask(app)
        except StoreUnavailable as error:
            say(f"redrive: {error}")
            await asyncio.sleep(every / 1000)


class _Frame(io.StringIO):
    """What is drawn, kept back until it is whole: a screen that is wiped and written line by line flickers."""

    def isatty(self) -> bool:
        return True


def redraw(draw: Callable[[], None]) -> None:
    """On a terminal over what was there before; else after it."""
    if not on_terminal():
        draw()
        sys.stdout.flush()
        return
    frame = _Frame()
    with redirect_stdout(frame):
        draw()
    text = frame.getvalue().replace("\n", f"{REST_OF_LINE}\n")
    sys.stdout.write(f"{HOME}{text}{REST_OF_SCREEN}")
    sys.stdout.flush()
