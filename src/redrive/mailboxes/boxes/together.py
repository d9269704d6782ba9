"""Calls of many threads that come while another is on its way travel together: one write for all of them.

A thread that acknowledges one message writes for itself, at once; sixteen threads that do so at the same time share one
write. Whoever was one of a crowd a moment ago waits a blink for the others, who were answered with it and come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from redrive.errors import ConfigError, QueueFull

Q = TypeVar("Q")
A = TypeVar("A")

MOST = 100
CROWD = 4
BLINK = 0.003
"""Seconds that the first of a crowd waits for the rest of it, which was answered with it and is on its way: no longer
than a write takes that reaches the disk. It goes on as soon as all are there.
"""


class Together(Generic[Q, A]):
    """`write` answers several questions, in their order; if it raises, it has done nothing of them, or nobody knows."""

    def __init__(self, write: Callable[[list[Q]], Awaitable[Sequence[A]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._crowd = 1
        self._all_there: asyncio.Event | None = None
        self._busy = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, question: Q) -> A:
        if not self._busy and self._crowd < CROWD:
            self._busy = True
            try:
                (answer,) = await self._write([question])
            finally:
                self._go_on()
            return answer
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._all_there is not None and len(self._waiting) >= self._crowd:
            self._all_there.set()
        if not self._busy:
            self._go_on()
        return await future

    def _go_on(self) -> None:
        """One write is on its way at a time: what comes meanwhile is the next."""
        self._busy = bool(self._waiting)
        if self._waiting:
            task = asyncio.create_task(self._travel())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _travel(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < self._crowd:
                    await self._gather()
                some, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                # Whoever gave up meanwhile asked for nothing.
                some = [one for one in some if not one[1].done()]
                self._crowd = len(some)
                if some:
                    await self._answer(some)
        finally:
            self._busy = False

    async def _gather(self) -> None:
        if self._crowd >= CROWD:
            self._all_there = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(BLINK):
                    await self._all_there.wait()
            self._all_there = None

    async def _answer(self, some: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._write([question for question, _ in some])
        except (ConfigError, QueueFull) as error:
            # Something about one of them cannot be done, or finds no room, and nothing was. The others may be fine.
            if len(some) == 1:
                _tell(some, error)
            else:
                for one in some:
                    await self._answer([one])
        except BaseException as error:
            _tell(some, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), answer in zip(some, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _tell(some: Sequence[tuple[Q, asyncio.Future[A]]], error: BaseException) -> None:
    for _, future in some:
        if not future.done():
            future.set_exception(error)
            future.exception()  # nobody may be left to hear it
