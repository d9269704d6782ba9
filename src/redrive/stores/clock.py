"""Time as the engine and the embedded stores see it; tests pass a fake clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from redrive.core.item import Instant, Millis
from redrive.core.quantity import shown
from redrive.errors import ConfigError


class Clock(Protocol):
    def now(self) -> Instant:
        """Wall time in milliseconds since the epoch."""

    def monotonic(self) -> Millis:
        """Milliseconds that never jump, for measuring how long something took."""

    async def sleep(self, duration: Millis) -> None: ...

    async def wait(self, event: asyncio.Event, timeout: Millis) -> bool:
        """Wait for the event for at most `timeout`; True if it was set."""


class SystemClock:
    def now(self) -> Instant:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> Millis:
        return time.monotonic_ns() // 1_000_000

    async def sleep(self, duration: Millis) -> None:
        await asyncio.sleep(duration / 1000)

    async def wait(self, event: asyncio.Event, timeout: Millis) -> bool:
        try:
            async with asyncio.timeout(timeout / 1000):
                return await event.wait()
        except TimeoutError:
            return False


def check_clock(clock: object) -> None:
    """Raises ConfigError for what is neither None nor a clock."""
    missing = [name for name in ("now", "monotonic", "sleep", "wait") if not callable(getattr(clock, name, None))]
    if clock is not None and missing:
        hint = "leave it out, or use redrive.testing.FakeClock()"
        raise ConfigError(f"{shown(clock)} is not a clock: it has no {missing[0]}()", field="clock", hint=hint)


class StoreTime:
    """Wall time that follows jumps forward but never goes back: a clock set back must not put off what is due.

    All that are made on one machine agree to the millisecond: an item that one process has put is due for the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Not of a clock that is derived from it: that has a time of its own.
        self._offset = _system_offset() if type(clock) is SystemClock else clock.now() - clock.monotonic()

    def now(self) -> Instant:
        # In this order: a thread that is held up between the two reads must not take the pause for a jump.
        wall = self._clock.now()
        monotonic = self._clock.monotonic()
        self._offset = max(self._offset, wall - monotonic)
        return monotonic + self._offset


def _system_offset() -> Millis:
    """The largest difference that the two clocks of the system show in whole milliseconds, which do not begin together.

    Several looks, since a thread may be held up between the two reads of one.
    """
    nanos = max(time.time_ns() - time.monotonic_ns() for _ in range(3))
    return -(-nanos // 1_000_000)
