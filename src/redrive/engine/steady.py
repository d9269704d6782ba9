"""How the engine meets a store that fails: it says so once, asks again with growing pauses, and says when it is back.

Every verb may be repeated (same ids, same nonce, same request), so asking again can never double anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from redrive.core.backoff import exponential
from redrive.errors import StoreError
from redrive.events import Events, StoreFailed, StoreRecovered
from redrive.stores.clock import Clock

T = TypeVar("T")

PAUSES = exponential("50ms", factor=2, cap="5s")


class Steady:
    def __init__(self, part: str, events: Events, clock: Clock) -> None:
        self._part = part
        self._events = events
        self._clock = clock
        self._failures = 0

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await call()
            except StoreError as error:
                await self._pause(error)
            else:
                self._recovered()
                return answer

    async def _pause(self, error: StoreError) -> None:
        self._failures += 1
        if self._failures == 1:
            self._events.emit(StoreFailed(self._part, f"{type(error).__name__}: {error}"))
        await self._clock.sleep(PAUSES.delay(self._failures, 0.0) or 0)

    def _recovered(self) -> None:
        if self._failures:
            self._failures = 0
            self._events.emit(StoreRecovered(self._part))
