"""Those who wait for work in this process, and how they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from redrive.core.families import family_and_member
from redrive.stores.aside import tell


class Waiter:
    def __init__(self, queues: Collection[str]) -> None:
        self.queues = frozenset(queues)
        self.event = asyncio.Event()
        self.loop = asyncio.get_running_loop()


class Waiters:
    """Each waiter has its own event, so one cannot take a signal from another. May be called from any thread."""

    def __init__(self) -> None:
        self._waiters: frozenset[Waiter] = frozenset()

    @contextmanager
    def register(self, queues: Collection[str]) -> Iterator[Waiter]:
        waiter = Waiter(queues)
        self._waiters |= {waiter}
        try:
            yield waiter
        finally:
            self._waiters -= {waiter}

    def wake(self, queues: Collection[str] | None = None) -> None:
        """None: everybody. Who waits for a family is woken for each of its members."""
        if queues is not None and self._waiters:
            queues = family_and_member(queues)
        for waiter in self._waiters:
            if queues is None or not waiter.queues.isdisjoint(queues):
                tell(waiter.loop, waiter.event.set)
