"""Waking those who wait for work elsewhere: LISTEN on a connection of its own, NOTIFY after the commit.

A wake-up is a hint and nothing depends on it: who waits also looks by itself. NOTIFY takes a lock that the whole
database shares, so it never rides in the transaction that makes something ready, and what comes while one is on its
way goes together with the next.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from contextlib import suppress

from redrive.core.backoff import exponential
from redrive.stores.postgres.arrays import texts
from redrive.stores.postgres.connect import connect
from redrive.stores.postgres.options import Options
from redrive.stores.postgres.pool import Pool, finish
from redrive.stores.postgres.wire import Wire
from redrive.stores.statements import load
from redrive.stores.waiters import Waiters

PAUSES = exponential("100ms", factor=2, cap="5s")
"""Between attempts to listen again."""
GAP = 0.002
"""Seconds between two notifications: pickup stays quick, and a stream of small puts does not become a storm."""
LAST_WORDS = 1.0
"""Seconds that closing waits for a notification that is on its way."""
LONGEST = 4_000
"""Bytes of a queue's name that fit a notification, which takes less than 8,000; a longer one wakes everybody."""


class Ear:
    def __init__(self, options: Options, waiters: Waiters, pool: Pool) -> None:
        self._options = options
        self._waiters = waiters
        self._pool = pool
        self._token = secrets.token_hex(6)
        self._pending: set[str] = set()
        self._telling: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._wire: Wire | None = None

    # --- telling ---

    def tell(self, queues: Collection[str]) -> None:
        if not self._options.notify:
            return
        self._pending.update(queues)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._pending:
            queues, self._pending = self._pending, set()
            notes = [f"{self._token}:{queue if len(queue.encode()) < LONGEST else ''}" for queue in sorted(queues)]
            # Whoever does not hear of it looks by itself.
            with suppress(Exception):
                await self._send(notes)
            await asyncio.sleep(GAP)

    async def _send(self, notes: list[str]) -> None:
        async with asyncio.timeout(self._options.timeout / 1000):
            wire = await self._pool.take()
            try:
                await wire.rows(load("postgres", "wake")["notify"], (self._options.channel, texts(notes)))
            except BaseException:
                self._pool.drop(wire)
                raise
            self._pool.give(wire)

    # --- listening ---

    async def listen(self) -> None:
        """Returns when we listen, or when it did not work: then it is tried again, and polling must do meanwhile."""
        if not self._options.notify:
            return
        if self._hearing is None or self._hearing.done():
            self._tried.clear()
            self._hearing = asyncio.create_task(self._hear())
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), self._options.timeout / 1000)

    async def _hear(self) -> None:
        failures = 0
        while True:
            try:
                wire = self._wire = await connect(self._options)
                await wire.rows(f'listen "{self._options.channel}"')
            except Exception:  # noqa: BLE001 - whatever it is, we try again
                self._forget()
                failures += 1
                self._tried.set()
                await asyncio.sleep((PAUSES.delay(failures, 0.0) or 0) / 1000)
                continue
            if failures:
                # What was put meanwhile told nobody.
                self._waiters.wake()
            failures = 0
            self._tried.set()
            await self._until_broken(wire)
            self._forget()
            self._waiters.wake()
            failures = 1

    async def _until_broken(self, wire: Wire) -> None:
        """Not psycopg's own waiting, which wakes up ten times in a second to look around."""
        loop = asyncio.get_running_loop()
        broken = loop.create_future()
        socket = wire.pgconn.socket

        def readable() -> None:
            try:
                wire.pgconn.consume_input()
                while (notification := wire.pgconn.notifies()) is not None:
                    self._heard(notification.extra.decode())
            except Exception:  # noqa: BLE001 - of no more use
                if not broken.done():
                    broken.set_result(None)

        loop.add_reader(socket, readable)
        try:
            # What came together with the answer to LISTEN makes the socket readable no more.
            readable()
            await broken
        finally:
            loop.remove_reader(socket)

    def _heard(self, note: str) -> None:
        token, _, queue = note.partition(":")
        if token != self._token:
            self._waiters.wake({queue} if queue else None)

    # --- the end ---

    async def close(self) -> None:
        """What was committed is told to the others before we go."""
        if self._telling is not None:
            await asyncio.wait({self._telling}, timeout=LAST_WORDS)
        tasks = [task for task in (self._telling, self._hearing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._forget()

    def abandon(self) -> None:
        self._forget()

    def _forget(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            finish(wire)
