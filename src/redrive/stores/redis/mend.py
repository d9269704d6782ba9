"""Reconciling: every item is put into exactly the sets that its record says, in steps and beside the work.

A server that lost the end of its log does not report it, so this happens after each restart of the server; and when a
namespace of an earlier layout is opened. Meanwhile `lease` moves an item that it finds in the wrong set.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from redrive.core.item import Millis
from redrive.errors import StoreError
from redrive.stores.redis.boot import SCHEMA
from redrive.stores.redis.pool import Pool

STEP = 500
"""Items looked at in one script: a few milliseconds in which the server does nothing else."""
CLAIM: Millis = 10_000
"""For so long after a step nobody else goes on with it."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

_DONE, _ELSEWHERE = 1, 2

_log = logging.getLogger("redrive.stores")


class _Runs(Protocol):
    pool: Pool

    def run(self, script: str, args: Sequence[Any] = ()) -> Awaitable[Any]: ...


class Mender:
    def __init__(self, session: _Runs) -> None:
        self._session = session
        self._me = secrets.token_hex(8)
        self._run = ""
        self._upgrades = False
        self.task: asyncio.Task[None] | None = None

    async def begin(self, run: str, reconciled: str, schema: int) -> None:
        """For whoever opens: a namespace without items is done with at once, all others beside the work."""
        self._upgrades = 0 < schema < SCHEMA
        if run == reconciled and not self._upgrades:
            return
        self._run = run
        if await self._step() != _DONE:
            self._go_on()

    def begin_again(self, run: str) -> None:
        """For whoever notices that the server was restarted."""
        self._run = run
        self._go_on()

    def _go_on(self) -> None:
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._mend())

    async def _mend(self) -> None:
        pause = FIRST_PAUSE
        while True:
            run = self._run
            state = await self._step()
            if state == _DONE and run == self._run:
                return
            if state == _ELSEWHERE:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _step(self) -> int:
        try:
            state, mended = await self._session.run("reconcile", [SCHEMA, self._run, self._me, STEP, CLAIM])
        except StoreError as error:
            # Also with an outcome that nobody knows: a step may be repeated.
            _log.warning("%s: its items are looked through later: %s", self._session.pool.where, error)
            return _ELSEWHERE
        if state == _DONE:
            self._tell(mended)
        return int(state)

    def _tell(self, mended: int) -> None:
        if self._upgrades:
            self._upgrades = False
            _log.info("%s: is in layout %d now; %d items changed places", self._session.pool.where, SCHEMA, mended)
        elif mended:
            _log.warning(
                "%s: the server was restarted; %d places of items did not agree with their records and were put right",
                self._session.pool.where,
                mended,
            )

    async def finish(self) -> None:
        if self.task is not None:
            await self.task

    async def stop(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
