"""Puts work in and writes down what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from redrive import Redrive
from redrive.core.durations import Duration, parse
from redrive.errors import OutcomeUnknown, RedriveError
from redrive.stores.clock import Clock, SystemClock
from tests.support.rig import records as r
from tests.support.rig.log import Write, now_ns

AT_ONCE = 100


class Producer:
    def __init__(self, app: Redrive, log: Write, clock: Clock | None = None) -> None:
        self._app = app
        self._log = log
        self._clock = clock or SystemClock()

    async def enqueue(self, queue: str, item_id: str, payload: object = None, *, delay: Duration | None = None) -> None:
        wait = 0 if delay is None else parse(delay)
        self._log(r.Invoke(item_id, queue, now_ns(), self._clock.now(), wait))
        try:
            await self._app.enqueue(queue, payload, id=item_id, delay=delay)
        except OutcomeUnknown:
            self._log(r.Told(item_id, "unknown", now_ns()))
        except RedriveError:
            self._log(r.Told(item_id, "fail", now_ns()))
        else:
            self._log(r.Told(item_id, "ok", now_ns()))

    async def enqueue_all(self, work: Iterable[tuple[str, str]]) -> None:
        """(queue, id) pairs, many at once, as busy clients would."""
        waiting = iter(work)

        async def client() -> None:
            for queue, item_id in waiting:
                await self.enqueue(queue, item_id)

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))
