"""Background tasks of a receiver: heartbeat and commands, cancel requests, retention, replays, and jobs of its owners.

A process that receives without a worker has no loop of its own: each receive starts the tasks that are due, and between
two of them, while a message is worked on for long, a timer does. With the clock of a test there is no timer: time
passes when the test moves it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from redrive.core.item import Item, Millis
from redrive.core.verbs import Held
from redrive.engine.cancelling import cancel_reason
from redrive.engine.heartbeat import EVERY, Heartbeat
from redrive.engine.maintainer import Maintainer
from redrive.engine.outbox import OutboxWorker
from redrive.engine.replays import IDLE, WINDOW, ReplayLeader, SendWindow
from redrive.errors import RedriveError
from redrive.events import CancelAsked, Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock

logger = logging.getLogger("redrive.engine")

SERVED: Millis = 600_000
"""A queue counts as served for this long after a receive: the receiver may be at work on what it got."""
JOBS_EVERY: Millis = 60_000

Job = Callable[[], Awaitable[object]]


class Delivery(Protocol):
    """`asked`: who requested its cancellation, and why."""

    item: Item
    asked: str


class ReceiveLoop(NamedTuple):
    """A loop of this process: how to stop it, and the deliveries that it has in hand. Both from any thread."""

    stop: Callable[[], None]
    in_hand: Callable[[], Sequence[Delivery]]


class ReceiverTasks:
    def __init__(
        self,
        worker: str,
        store: Store,
        events: Events,
        clock: Clock,
        send_by_payload: SendWindow | None = None,
        *,
        release: str = "",
    ) -> None:
        self._worker = worker
        self._store = store
        self._clock = clock
        self._events = events
        self._maintainer = Maintainer(worker, store, events, clock)
        self._replays = ReplayLeader(store, worker, events=events, clock=clock, send_by_payload=send_by_payload)
        self.outbox = OutboxWorker(store, events, clock)
        self._loops: list[ReceiveLoop] = []
        self._heartbeat = Heartbeat(
            worker,
            store,
            queues=self._served,
            release=release,
            running=lambda: len(self._in_hand()),
            obey=self._stop_loops,
            events=events,
            clock=clock,
        )
        self._jobs: dict[object, Job] = {}
        self._received: dict[str, Millis] = {}
        self._beat_at = self._jobs_at = clock.monotonic()
        self._retention_at = clock.monotonic() + JOBS_EVERY
        self._replays_at = clock.monotonic() + IDLE
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.Task[None] | None = None

    def add(self, owner: object, job: Job) -> None:
        """A job for the next receive, and once a minute from then on. From any thread."""
        self._jobs[owner] = job
        self._jobs_at = self._clock.monotonic()

    def remove(self, owner: object) -> None:
        self._jobs.pop(owner, None)

    @contextmanager
    def attended(self, loop: ReceiveLoop) -> Iterator[None]:
        """While the block runs, an operator's drain or stop ends the loop. From any thread."""
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.remove(loop)

    def received(self, queue: str) -> None:
        """In the loop: a receiver looks into this queue. Cheap, unless a task is due."""
        now = self._clock.monotonic()
        self._received[queue] = now
        if now >= min(self._beat_at, self._jobs_at, self._retention_at, self._replays_at):
            self._start_due(now)
        if self._timer is None and isinstance(self._clock, SystemClock):
            self._timer = asyncio.create_task(self._tick())

    @property
    def at_work(self) -> bool:
        return bool(self._tasks)

    async def rest(self) -> None:
        """In the loop: until the tasks that were started have ended."""
        await asyncio.gather(*self._tasks.values())

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *([] if self._timer is None else [self._timer])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._replays.resign()
        await self.outbox.close()
        if self._served():
            await self._heartbeat.end()

    async def _tick(self) -> None:
        while True:
            until = self._replays_at - self._clock.monotonic()
            await asyncio.sleep(max(1, min(EVERY, until)) / 1000)
            self._start_due(self._clock.monotonic())

    def _start_due(self, now: Millis) -> None:
        if now >= self._beat_at:
            self._beat_at = now + EVERY
            if self._served():
                self._start("heartbeat", self._beat)
        if now >= self._jobs_at:
            self._jobs_at = now + JOBS_EVERY
            self._start("jobs", self._run_jobs)
        if now >= self._retention_at:
            self._retention_at = now + JOBS_EVERY
            self._start("retention", self._maintainer.round)
        if now >= self._replays_at:
            self._replays_at = now + WINDOW
            self._start("replays", self._send_windows)

    def _start(self, name: str, work: Job) -> None:
        """One at a time of each. A failure is only logged: the task is due again soon."""

        async def attempt() -> None:
            try:
                await work()
            except RedriveError as error:
                logger.debug("%s: %s failed: %s", self._worker, name, error)
            except Exception:
                logger.exception("%s: %s failed", self._worker, name)
            finally:
                self._tasks.pop(name, None)

        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(attempt())

    async def _send_windows(self) -> None:
        wait = IDLE
        try:
            wait = await self._replays.turn()
        finally:
            self._replays_at = self._clock.monotonic() + wait

    async def _beat(self) -> None:
        await self._heartbeat.beat()
        held = {delivery.item.id: delivery for delivery in self._in_hand() if not delivery.asked}
        if not held:
            return
        # A lease never gets shorter, so this only reads the cancel requests.
        leases = [Held(delivery.item.id, delivery.item.deliveries) for delivery in held.values()]
        for item_id in (await self._store.extend(leases, 1)).cancel_requested:
            delivery = held[item_id]
            delivery.asked = await cancel_reason(self._store, item_id)
            item = delivery.item
            self._events.emit(CancelAsked(self._worker, item.queue, item_id, item.deliveries, delivery.asked))

    def _in_hand(self) -> list[Delivery]:
        return [delivery for loop in tuple(self._loops) for delivery in loop.in_hand()]

    def _stop_loops(self, _command: str) -> None:
        """Whatever the command, each loop finishes its message: it runs in a thread of the user."""
        for loop in tuple(self._loops):
            loop.stop()

    def _served(self) -> tuple[str, ...]:
        now = self._clock.monotonic()
        return tuple(sorted(queue for queue, at in self._received.items() if now - at < SERVED))

    async def _run_jobs(self) -> None:
        for job in tuple(self._jobs.values()):
            try:
                await job()
            except RedriveError as error:
                logger.debug("%s: a job failed: %s", self._worker, error)
