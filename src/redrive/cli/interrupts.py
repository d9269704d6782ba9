"""Ctrl-C once: finish what is on its way and report. Twice: at once."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

import click

from redrive.cli.output import say


class Interrupts:
    """In a running loop, while long work goes on. `heard`: somebody wants it to stop."""

    def __init__(self, said: str) -> None:
        self.heard = False
        self._said = said
        self._task = asyncio.current_task()
        self._at_once = False

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        if self._at_once and isinstance(error, asyncio.CancelledError):
            raise click.Abort from None

    def _hear(self) -> None:
        if not self.heard:
            self.heard = True
            say(self._said)
        elif self._task is not None:
            self._at_once = True
            self._task.cancel()
