"""Deliveries that a remote process works on: it polls for them, and reports what came of each.

A worker here leases, extends and settles them. Its handler waits for the report:

    remote = Remote("hub 7", clock, most_bytes=8_000_000)     # the worker has demand=remote.demand
    report = await remote.work(key, make)                     # in the handler
    jobs, held = await remote.poll(have, gone, check)         # for the remote process, which polls again at once
    accepted = remote.report(key, report)

The worker leases while the remote process polls, and for a moment after it; what is not given then goes back,
uncharged. What was given is over at a known time: before it no other process gets it, unless there is a report. A
remote process that polls after it and does not report has failed an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from redrive.core.item import Millis
from redrive.engine.runner import cancel_requested
from redrive.engine.signals import Snooze
from redrive.engine.slots import Demand
from redrive.stores.clock import Clock

POLL: Millis = 15_000
"""The longest answer to a poll. Polls are the heartbeat of the remote process."""
MOMENT: Millis = 2_000
"""From the end of a poll to the next one. After it nothing more is leased."""
TRAVEL: Millis = 10_000
"""What a job may take on its way. The remote process cuts the time of one that took longer."""
AGAIN: Millis = 60_000
"""For so long, a job that the remote process does not have is given to it again: an answer was lost."""
REPORT: Millis = 60_000
"""What a report may take after the end of its job, since the first poll after it."""

J = TypeVar("J")
R = TypeVar("R")


class Job(NamedTuple, Generic[J]):
    """What is given. `within`: how long the remote process may work on it. `size`: in bytes."""

    given: J
    within: Millis
    size: int


class Late(Exception):
    """The remote process did not report in time."""


class _Delivery(Generic[J, R]):
    """`first`: when it was given. `until`: when the work on it is over in any case. `late`: when it has failed."""

    first: Millis | None = None
    until: Millis | None = None
    late: Millis | None = None

    def __init__(self, make: Callable[[], Job[J]]) -> None:
        self.make = make
        self.report: asyncio.Future[R] = asyncio.get_running_loop().create_future()


class Remote(Generic[J, R]):
    """A remote process. Answers to its polls have up to `most_bytes`, or a single job."""

    def __init__(self, name: str, clock: Clock, *, most_bytes: int) -> None:
        self.name = name
        self.demand = Demand()
        self.seen = clock.monotonic()
        self._clock = clock
        self._most_bytes = most_bytes
        self._deliveries: dict[Hashable, _Delivery[J, R]] = {}
        self._changed = asyncio.Event()
        self._polling: asyncio.Future[Any] | None = None
        self._idle = False
        self._lingering = asyncio.create_task(self._linger(MOMENT))

    async def work(self, key: Hashable, make: Callable[[], Job[J]]) -> R:
        """In a handler: what the remote process reports. `make` is called when the job is given. Raises Late."""
        if not self.demand.wanted:
            raise self._unwanted()
        delivery: _Delivery[J, R] = _Delivery(make)
        self._deliveries[key] = delivery
        self._changed.set()
        try:
            return await asyncio.shield(delivery.report)
        except asyncio.CancelledError:
            # Too late to cancel it; and what comes after it in order must wait.
            if delivery.report.done() or (delivery.until is not None and cancel_requested()):
                return await delivery.report
            if delivery.until is None or self._idle:
                raise
            left = max(0, delivery.until - self._clock.monotonic()) / 1000
            raise Snooze(left, note=f"no report of {self.name}, which may have delivered it") from None
        finally:
            del self._deliveries[key]

    async def poll(
        self, have: Collection[Hashable], gone: asyncio.Future[Any], check: Callable[[], Awaitable[object]]
    ) -> tuple[tuple[J, ...], Millis]:
        """Jobs that the remote process does not have, as soon as there are any; and how long that took.

        `gone` is done when the remote process does not wait for the answer. A later poll takes the place of this one.
        `check` is called before something is given, and may raise.
        """
        began = self.seen = self._clock.monotonic()
        self._end_late(began)
        self._lingering.cancel()
        self._polling = gone
        gone.add_done_callback(lambda _: self._changed.set())
        self.demand.set(wanted=True)
        try:
            while self._polling is gone and not gone.done() and not any(self._to_give(have)):
                self._changed.clear()
                if (left := began + POLL - self._clock.monotonic()) <= 0:
                    break
                await self._clock.wait(self._changed, left)
            await check()
            now = self._clock.monotonic()
            return self._give(have, now) if self._polling is gone and not gone.done() else (), now - began
        finally:
            if self._polling is gone:
                self._lingering = asyncio.create_task(self._linger(0 if gone.done() else MOMENT))

    def report(self, key: Hashable, report: R) -> bool:
        """False: the remote process does not have it, or no more."""
        self.seen = self._clock.monotonic()
        delivery = self._deliveries.get(key)
        if delivery is None or delivery.until is None or delivery.report.done():
            return False
        delivery.report.set_result(report)
        return True

    def close(self, *, idle: bool = False) -> None:
        """Give nothing more. To be called before its worker is cancelled: then what was given comes back when the work
        on it is over. `idle`: it is over already.
        """
        self._idle = idle
        self._polling = None
        self._lingering.cancel()
        self.demand.set(wanted=False)
        self._changed.set()

    def _to_give(self, have: Collection[Hashable]) -> Iterator[_Delivery[J, R]]:
        now = self._clock.monotonic()
        for key, delivery in self._deliveries.items():
            again = delivery.first is None or now < delivery.first + AGAIN
            if again and key not in have and not delivery.report.done():
                yield delivery

    def _give(self, have: Collection[Hashable], now: Millis) -> tuple[J, ...]:
        jobs: list[J] = []
        size = 0
        for delivery in self._to_give(have):
            job = delivery.make()
            size += job.size
            if jobs and size > self._most_bytes:
                break
            delivery.first = now if delivery.first is None else delivery.first
            delivery.until = now + job.within + TRAVEL
            jobs.append(job.given)
            self.seen = now
        return tuple(jobs)

    def _end_late(self, now: Millis) -> None:
        """It polls, so it could have reported."""
        for delivery in self._deliveries.values():
            if delivery.first is None or delivery.until is None or now < delivery.until or delivery.report.done():
                continue
            delivery.late = now + REPORT if delivery.late is None else delivery.late
            if now >= delivery.late:
                seconds = (now - delivery.first) // 1000
                delivery.report.set_exception(Late(f"{self.name} did not report within {seconds} s"))

    async def _linger(self, pause: Millis) -> None:
        await self._clock.sleep(pause)
        self.demand.set(wanted=False)
        for delivery in self._deliveries.values():
            if delivery.until is None and not delivery.report.done():
                delivery.report.set_exception(self._unwanted())

    def _unwanted(self) -> Snooze:
        return Snooze("0s", note=f"{self.name} does not ask for more")
