"""Waking those who wait for work, from whatever thread the work came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from redrive.core.families import family_of, is_family


class Waiter:
    """Has its own event, so that nobody can take a signal away from somebody else."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = frozenset(queues)
        self.families = frozenset(filter(is_family, self.queues))
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        if _running_loop() is self._loop:
            self.event.set()
            return
        # The waiter's loop may be closed already, and with it whoever waited.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.event.set)


class Waiters:
    """Used under the store's lock. They are woken in the order in which they came."""

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    def add(self, queues: Iterable[str]) -> Waiter:
        waiter = Waiter(queues)
        self._waiters[waiter] = None
        return waiter

    def remove(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def wake(self, queue: str | None = None) -> None:
        """Those who wait for this queue; None: everybody."""
        for waiter in self._waiters:
            if queue is None or queue in waiter.queues or (waiter.families and family_of(queue) in waiter.families):
                waiter.wake()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
