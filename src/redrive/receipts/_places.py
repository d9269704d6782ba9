"""The places of a poller: who works, and who was claimed and waits for one to become free."""

from __future__ import annotations

import asyncio

from redrive.receipts.jobs import Job


class Places:
    def __init__(self, most: int) -> None:
        self._most = most
        self._busy = 0
        self._waiting: dict[Job, asyncio.Future[bool]] = {}

    @property
    def free(self) -> int:
        """How many more may come; fewer than none if some wait already."""
        return self._most - self._busy - len(self._waiting)

    @property
    def waiting(self) -> tuple[Job, ...]:
        return tuple(self._waiting)

    def enter(self, job: Job) -> asyncio.Future[bool]:
        """True when it has its place, False when it was turned away before."""
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self.free > 0:
            self._busy += 1
            place.set_result(True)
        else:
            self._waiting[job] = place
        return place

    def leave(self) -> None:
        """A place is free: it goes to whoever waits the longest."""
        self._busy -= 1
        while self._waiting and self._busy < self._most:
            place = self._waiting.pop(next(iter(self._waiting)))
            if not place.done():  # nobody waits for one that was cancelled
                self._busy += 1
                place.set_result(True)

    def turn_away(self, job: Job) -> None:
        """If it still waits."""
        place = self._waiting.pop(job, None)
        if place is not None and not place.done():
            place.set_result(False)
