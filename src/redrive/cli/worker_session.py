"""A worker from start to end, and the signals that end it: one drains, a second stops at once, a third just leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from redrive.app import Redrive
from redrive.cli.exits import Exit
from redrive.cli.guard import Guard
from redrive.cli.leaving import leave_now
from redrive.cli.worker_line import ChildLine
from redrive.cli.worker_logs import logger
from redrive.core.durations import Duration
from redrive.core.durations import format as format_duration
from redrive.core.item import Millis
from redrive.events import Event, Events, StoreFailed, StoreRecovered, WorkerOrdered, WorkerStarted, WorkerStopped

LAST_WORDS: Millis = 10_000
"""Beyond the grace: for the last write. A store that is gone must not keep the process."""
HEAR_AGAIN = 0.1
LINGER = 0.25
"""Seconds for tasks that were cancelled long ago."""
TURNS = 3
"""Of the loop, in which workers that are told to stop have heard it."""


class Runs(Protocol):
    """What has a session: an app, or a door's process that opens, runs and stops in the same way."""

    @property
    def events(self) -> Events: ...

    async def open(self) -> object: ...

    async def run(
        self, *, until_idle: bool, queues: list[str] | None, grace: Duration, concurrency: int | None
    ) -> None: ...

    async def stop(self, *, grace: Duration | None = None) -> None: ...

    async def close(self) -> None: ...


class Session:
    """`line` leads to the supervisor, if there is one."""

    def __init__(self, app: Runs, grace: Millis, line: ChildLine | None = None) -> None:
        self._app = app
        self._grace = grace
        self._line = line
        self._signals: list[signal.Signals] = []
        self._asked = asyncio.Event()
        self._announcing: asyncio.Task[None] | None = None
        self._announced = False
        self._failing: dict[str, str] = {}
        self._working = False
        app.events.subscribe(self._watch)

    async def serve(
        self, queues: list[str] | None = None, *, until_idle: bool = False, concurrency: int | None = None
    ) -> Exit:
        loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(pool)
        guard = Guard(loop, self._grace)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)
            guard.hear(number)
        try:
            await self._app.open()
            if isinstance(self._app, Redrive) and self._app.info().engine == "memory":
                logger.warning("the app's store is memory: nobody outside of this process can enqueue to it")
            if isinstance(self._app, Redrive) and self._line is not None:
                await self._line.catch_up(self._app)
            attending = asyncio.create_task(self._attend())
            grace = f"{self._grace}ms"
            work = self._app.run(until_idle=until_idle, queues=queues, grace=grace, concurrency=concurrency)
            await self._work(asyncio.create_task(work))
            attending.cancel()
        finally:
            await self._close()
            pool.shutdown(wait=False, cancel_futures=True)
            # asyncio waits for its executor, however long a thread hangs: it gets an empty one.
            loop.set_default_executor(ThreadPoolExecutor())
        await self._part_with_tasks()
        return self._exit()

    async def _attend(self) -> None:
        """Ends this worker in good order when its supervisor is gone, unless it is ending already."""
        if self._line is not None and isinstance(self._app, Redrive):
            await self._line.attend(self._app)
            if not self._signals:
                logger.warning("the supervisor is gone")
                os.kill(os.getpid(), signal.SIGTERM)

    async def _part_with_tasks(self) -> None:
        """Asyncio would wait for ever for a handler that swallows its cancellation; its item is released already."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        stuck = (await asyncio.wait(others, timeout=LINGER))[1] if others else set()
        if stuck:
            logger.error("left behind %d tasks that would not end", len(stuck))
            leave_now(self._exit())

    async def _work(self, running: asyncio.Task[None]) -> None:
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait({running, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        ends = time.monotonic() + (self._grace + LAST_WORDS) / 1000
        while not running.done():
            if len(self._signals) > 1:
                ends = min(ends, time.monotonic() + LAST_WORDS / 1000)
            if time.monotonic() > ends:
                logger.error("the worker did not end in time; leaving, its leases will expire by themselves")
                leave_now(Exit.FAILED)
            await self._stop(running)
        running.result()

    async def _stop(self, running: asyncio.Task[None]) -> None:
        """Said again and again: a stop that comes before the worker has begun would not be heard."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAR_AGAIN):
                await self._app.stop(grace=0 if len(self._signals) > 1 else None)
        await asyncio.wait({running}, timeout=HEAR_AGAIN)

    async def _announce(self) -> None:
        """Said when it is so: whoever reads it may count on it that nothing new is begun."""
        stopping = asyncio.ensure_future(self._app.stop())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._say_stopping()
        await stopping

    def _say_stopping(self) -> None:
        if not self._announced:
            self._announced = True
            logger.warning(
                "%s: stopping; running handlers may finish within %s, a second signal stops them at once",
                self._signals[0].name,
                format_duration(self._grace),
            )

    def _hear(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._asked.set()
        if len(self._signals) == 1:
            self._announcing = asyncio.ensure_future(self._announce())
        elif len(self._signals) == 2:
            self._say_stopping()
            logger.warning("%s again: stopping at once; items in hand are released", number.name)
        else:
            logger.error("%s once more: leaving now", number.name)
            leave_now(Exit.INTERRUPTED)

    async def _close(self) -> None:
        closing = asyncio.create_task(self._app.close())
        done, _ = await asyncio.wait({closing}, timeout=LAST_WORDS / 1000)
        if not done:
            logger.error("the store did not close in time; leaving")
            leave_now(Exit.FAILED)
        closing.result()

    def _watch(self, event: Event) -> None:
        """Which parts of the worker cannot reach the store, and why; and that it has begun or was told to end."""
        if isinstance(event, WorkerStarted):
            self._working = True
            if self._line is not None:
                self._line.ready()
        elif isinstance(event, WorkerOrdered | WorkerStopped):
            self._working = False
        elif isinstance(event, StoreFailed):
            self._failing[event.part] = event.error
        elif isinstance(event, StoreRecovered):
            self._failing.pop(event.part, None)

    def health(self) -> dict[str, object]:
        """The answer of /health/ready: the worker takes work and its store answers. Letters do not matter."""
        working, failing = self._working and not self._signals, sorted(self._failing)
        status = "healthy" if working and not failing else "unhealthy"
        return {"status": status, "working": working, "store_failing": failing}

    def _exit(self) -> Exit:
        if self._failing:
            why = next(iter(self._failing.values()))
            logger.error(
                "the store could not be told the last results; their leases will expire by themselves: %s", why
            )
            return Exit.STORE
        if len(self._signals) > 1 or signal.SIGINT in self._signals:
            return Exit.INTERRUPTED
        return Exit.DONE
