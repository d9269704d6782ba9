"""Those who write in the same turn of the loop share one write: it costs hardly more than that of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from redrive.core.item import Millis, NewItem
from redrive.errors import OutcomeUnknown, StoreError
from redrive.stores.base import Store
from redrive.stores.clock import Clock

PAUSES: tuple[Millis, ...] = (50, 100, 200)
"""Before a write is repeated of which nobody knows whether it was done: with the same ids it cannot double."""
MOST = 500
PATIENCE = 0.05
"""Seconds that a write waits for the worker: it may be busy with a store that does not answer."""


class Asked(NamedTuple):
    item: NewItem
    added: asyncio.Future[bool]


class Writing:
    """`told`: called with the ids that a write has added, before anybody else can know of them."""

    def __init__(self, store: Store, clock: Clock, told: Callable[[tuple[str, ...]], None]) -> None:
        self._store = store
        self._clock = clock
        self._told = told
        self._asked: list[Asked] = []
        self._task: asyncio.Task[None] | None = None
        self._wake: Callable[[], None] | None = None
        self._late: asyncio.TimerHandle | None = None

    async def put(self, item: NewItem) -> bool:
        """Durable when it returns. False: something has that id already."""
        asked = Asked(item, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._task is None:
            self._call()
        return await asked.added

    def _call(self) -> None:
        """One write at a time: what comes meanwhile shares the next. The worker takes it along, if there is one."""
        if self._wake is None:
            self._start()
        else:
            self._wake()
            if self._late is None:
                self._late = asyncio.get_running_loop().call_later(PATIENCE, self._start)

    def attend(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        if wake is None:
            self._start()

    def begin(self) -> bool:
        return self._start() if self._asked else False

    def _start(self) -> bool:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._task is not None or not self._asked:
            return False
        self._task = asyncio.get_running_loop().create_task(self._write_all())
        return True

    async def _write_all(self) -> None:
        """Of this turn of the loop."""
        try:
            asked, self._asked = self._asked[:MOST], self._asked[MOST:]
            await self._write(asked)
        finally:
            self._task = None
            if self._asked:
                self._call()

    async def _write(self, asked: Sequence[Asked]) -> None:
        try:
            added = await self._put([each.item for each in asked])
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            if len(asked) > 1 and isinstance(error, Exception) and not isinstance(error, StoreError):
                # One that cannot be written, or has no room any more, is no reason to refuse the others.
                for each in asked:
                    await self._write([each])
                return
            for each in asked:
                if not each.added.done():
                    each.added.set_exception(error)
            return
        if added:
            self._told(added)
        ours = frozenset(added)
        for each in asked:
            if not each.added.done():
                each.added.set_result(each.item.id in ours)

    async def _put(self, items: Sequence[NewItem]) -> tuple[str, ...]:
        for pause in PAUSES:
            with suppress(OutcomeUnknown):
                return (await self._store.put(items)).added
            await self._clock.sleep(pause)
        return (await self._store.put(items)).added
