"""Puts that come while another is on its way travel together: one write for all of them, as in a group commit.

A write to a server is mostly waiting. Callers that enqueue one by one, many at a time, would each pay for it; so what
arrives meanwhile is gathered and goes next. Each caller still gets its own answer, and nobody waits for a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from redrive.core.item import NewItem
from redrive.core.verbs import Duplicate, PutResult
from redrive.errors import ConfigError, QueueFull

MOST = 1_000
"""Items in one gathered write: enough to share a commit, and not so many that the first caller waits for the last."""
WAYS = 2
"""Writes on their way at once: while the server is busy with one, the next is being sent."""

Send = Callable[[Sequence[NewItem]], Awaitable[PutResult]]


class _Call(NamedTuple):
    items: Sequence[NewItem]
    answer: asyncio.Future[PutResult]


class Gather:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._calls: list[_Call] = []
        self._ways: set[asyncio.Task[None]] = set()

    async def put(self, items: Sequence[NewItem]) -> PutResult:
        if len(items) >= MOST:
            return await self._send(items)
        call = _Call(items, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        if len(self._ways) < WAYS:
            way = asyncio.create_task(self._travel())
            self._ways.add(way)
            way.add_done_callback(self._ways.discard)
        try:
            return await asyncio.shield(call.answer)
        except asyncio.CancelledError:
            if call in self._calls:
                self._calls.remove(call)
            elif not call.answer.done():
                # It is on its way: nothing may happen behind the caller's back.
                await asyncio.wait({call.answer})
            call.answer.cancel()
            raise

    async def _travel(self) -> None:
        # The callers that are ready in this turn of the loop go together.
        await asyncio.sleep(0)
        while self._calls:
            await self._together(self._next())

    def _next(self) -> list[_Call]:
        count = 0
        for number, call in enumerate(self._calls):
            count += len(call.items)
            if count > MOST and number:
                chosen, self._calls = self._calls[:number], self._calls[number:]
                return chosen
        chosen, self._calls = self._calls, []
        return chosen

    async def _together(self, calls: list[_Call]) -> None:
        try:
            result = await self._send([new for call in calls for new in call.items])
        except (ConfigError, QueueFull) as error:
            # Something of one of them cannot be stored or finds no room, and nothing was. The others may fit.
            if len(calls) == 1:
                _fail(calls, error)
            else:
                for call in calls:
                    await self._together([call])
        except BaseException as error:
            _fail(calls, error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            added, duplicates = set(result.added), {one.id: one for one in result.duplicates}
            for call in calls:
                answer = _share(call.items, added, duplicates)
                if not call.answer.done():
                    call.answer.set_result(answer)


def _fail(calls: Sequence[_Call], error: BaseException) -> None:
    for call in calls:
        if not call.answer.done():
            call.answer.set_exception(error)
            # Nobody may be left to hear it.
            call.answer.exception()


def _share(items: Sequence[NewItem], added: set[str], duplicates: dict[str, Duplicate]) -> PutResult:
    """One caller's part. An id that two callers gave was added for the first of them."""
    mine: list[str] = []
    already: list[str] = []
    refused: list[Duplicate] = []
    for new in items:
        if new.id in added:
            added.discard(new.id)
            mine.append(new.id)
        elif new.id in duplicates:
            refused.append(duplicates[new.id])
        else:
            already.append(new.id)
    return PutResult(tuple(mine), tuple(already), tuple(refused))
