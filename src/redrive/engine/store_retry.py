"""Retry of store calls: without limit for the engine's own tasks, a few times for a write of unknown outcome.

Every verb may be repeated (same ids, same nonce, same request), so a retry can never double anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from redrive.core.backoff import exponential
from redrive.core.item import Millis
from redrive.errors import OutcomeUnknown, StoreError, StoreUnavailable
from redrive.events import Events, StoreFailed, StoreRecovered
from redrive.stores.clock import Clock

T = TypeVar("T")

PAUSES = exponential("50ms", factor=2, cap="5s")
UNKNOWN_PAUSES: tuple[Millis, ...] = (50, 200, 500)


class StoreRetry:
    """Repeats a call until the store answers, with growing pauses. Emits StoreFailed once, and StoreRecovered.

    `forever=False` raises the first error instead.
    """

    def __init__(self, part: str, events: Events, clock: Clock, *, forever: bool = True) -> None:
        self._forever = forever
        self._part = part
        self._events = events
        self._clock = clock
        self._failures = 0

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                answer = await call()
            except StoreError as error:
                if not self._forever:
                    raise
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


async def retry_unknown(
    write: Callable[[], Awaitable[T]],
    pauses: Sequence[Millis] | None = None,
    clock: Clock | None = None,
    *,
    unavailable: bool = False,
) -> tuple[T, bool]:
    """Repeat a write of unknown outcome, unchanged. Gives the answer, and whether it is that of the first try: if not,
    what the store already has may be our own write.

    `pauses` before each retry (UNKNOWN_PAUSES), on `clock`, or in real time: the network needs them whatever a test's
    clock shows. `unavailable`: retry StoreUnavailable from the first try on, too.
    Raises OutcomeUnknown if any try may have been written, else StoreUnavailable.
    """
    failure: OutcomeUnknown | StoreUnavailable | None = None
    for pause in (*(UNKNOWN_PAUSES if pauses is None else pauses), None):
        try:
            return await write(), failure is None
        except OutcomeUnknown as error:
            failure = error
        except StoreUnavailable as error:
            # This try did nothing; the outcome of an earlier one is still unknown.
            failure = failure or error
            if not unavailable and failure is error:
                raise
        if pause is None:
            raise failure
        await (asyncio.sleep(pause / 1000) if clock is None else clock.sleep(pause))
    raise AssertionError("unreachable")
