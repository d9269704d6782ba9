"""The batcher: calls that arrive while a write is under way share the next write.

A caller that is alone writes for itself, at once; sixteen threads that acknowledge at the same time share one write.
After a batch, the next one waits up to 3 ms for the callers that were answered with it and are about to call again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from redrive.errors import RedriveError, StoreError

Q = TypeVar("Q")
A = TypeVar("A")

MOST = 100
CROWD = 4
"""From this size on, a batch lets the next one wait for as many callers."""
WAIT = 0.003
"""Seconds: not longer than a write that reaches the disk takes."""


class Batcher(Generic[Q, A]):
    """`write` answers up to `most` requests, in their order. If it raises, it has written none of them, or the outcome
    is unknown.

    `start` replaces the write at once: it is called when requests wait and no write is under way, and it, or a worker
    that it wakes, calls `begin`. So requests of one turn of the loop share a write, which can join one of the worker's.
    """

    def __init__(
        self,
        write: Callable[[list[Q]], Awaitable[Sequence[A]]],
        *,
        most: int = MOST,
        start: Callable[[], object] | None = None,
    ) -> None:
        self._write = write
        self._most = most
        self._start = start
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._crowd = 1
        self._complete: asyncio.Event | None = None
        self._busy = False
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, request: Q) -> A:
        if not self._busy and self._crowd < CROWD and self._start is None:
            self._busy = True
            try:
                (answer,) = await self._write([request])
            finally:
                self._next()
            return answer
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._complete is not None and len(self._waiting) >= self._crowd:
            self._complete.set()
        if not self._busy:
            self._next()
        return await future

    def begin(self) -> bool:
        """Write the requests that wait, in the next turn of the loop. False if none waits or a write is under way."""
        if self._busy or not self._waiting:
            return False
        self._busy = True
        self._task = asyncio.get_running_loop().create_task(self._run())
        return True

    def _next(self) -> None:
        self._busy = False
        if self._waiting:
            (self._start or self.begin)()

    async def _run(self) -> None:
        try:
            if self._start is None:
                await self._gather()
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            batch = [each for each in batch if not each[1].done()]  # without callers that were cancelled
            self._crowd = len(batch)
            if batch:
                await self._answer(batch)
        except BaseException:
            self._busy = False
            raise
        self._next()

    async def _gather(self) -> None:
        if CROWD <= self._crowd > len(self._waiting):
            self._complete = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT):
                    await self._complete.wait()
            self._complete = None

    async def _answer(self, batch: list[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._write([request for request, _ in batch])
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, RedriveError) and not isinstance(error, StoreError):
                # One request is not possible, or has no room, and nothing was written. The others may be fine.
                for each in batch:
                    await self._answer([each])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # the caller may have been cancelled since
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
