"""Objects that are opened and closed once, by context managers that may be nested."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

from redrive.errors import AppClosed


class Nesting:
    """Counts the blocks that are open, from any thread."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self._count += 1

    def leave(self) -> bool:
        """True for the last block."""
        with self._lock:
            self._count -= 1
            return self._count == 0


class AsyncLifecycle:
    """`_open` and `_end` of a subclass are called once. The end of the outermost block closes it.

    `_noun` and `_again` are for errors: what was closed, and how to get another one.
    """

    _noun = "app"
    _again = "make a new Redrive"
    _entered_by = "async with app:"

    def __init__(self) -> None:
        self._state = "new"
        self._door = asyncio.Lock()
        self._nesting = Nesting()

    async def open(self) -> Self:
        async with self._door:
            if self._state == "closed":
                raise AppClosed(f"this {self._noun} was closed", hint=self._again)
            if self._state == "new":
                await self._open()
                self._state = "open"
        return self

    async def close(self) -> None:
        """May be called twice."""
        async with self._door:
            if self._state == "open":
                self._state = "closed"
                await self._end()

    async def _open(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._state != "open":
            closed = self._state == "closed"
            hint = self._again if closed else f"use it inside `{self._entered_by}`"
            text = f"the {self._noun} {'was closed' if closed else 'is not open'}; nothing was written"
            raise AppClosed(text, hint=hint)

    async def __aenter__(self) -> Self:
        await self.open()
        self._nesting.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._nesting.leave():
            await self.close()
