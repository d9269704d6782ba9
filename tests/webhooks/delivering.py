"""A relay at work in the background of a test: real sockets, and time that stands still."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from redrive.events import Event, Finished, WorkerStarted
from redrive.testing.clock import FakeClock
from redrive.webhooks import Relay
from redrive.webhooks.model import FAMILIES

LOOPBACK = "127.0.0.0/8"
BLINK = 20
"""Milliseconds: the longest wait of a worker for others to join a batch. Until time passes it would wait for ever."""


class Delivering:
    """`clock` stands still until a test moves it."""

    def __init__(self, relay: Relay, clock: FakeClock) -> None:
        self.relay = relay
        self.clock = clock
        self._ended: Counter[str] = Counter()
        self._more = asyncio.Event()
        self.started = asyncio.Event()
        relay.app.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, WorkerStarted):
            self.started.set()
        if isinstance(event, Finished) and event.queue.startswith(FAMILIES[0][:-1]):
            self._ended[event.id] += 1
            self._more.set()

    async def ended(self, *webhook_ids: str, times: int = 1) -> None:
        """Until each of these had so many attempts. Time passes for the worker's own short waits only."""
        while any(self._ended[each] < times for each in webhook_ids):
            self._more.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), BLINK / 1000)
                continue
            pause = self.clock.next_in
            if pause is not None and pause < BLINK:
                self.clock.advance(pause)


@asynccontextmanager
async def delivering(store: Any = "memory:", **options: Any) -> AsyncIterator[Delivering]:
    clock = FakeClock()
    async with Relay(store, **{"allow": [LOOPBACK], "clock": clock, "log": False, **options}) as relay:
        made = Delivering(relay, clock)
        running = asyncio.create_task(relay.run())
        await made.started.wait()
        try:
            yield made
        finally:
            await relay.stop(grace=0)
            await running
