"""What an open store needs beside the calls: to be told who receives, retention, and the chores of its mailboxes.

Done in the background by whoever receives: by every look that finds it due, and between looks, while a message is
worked on for long, by a timer. A clock of a test has no timer: its time passes when the test says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.core.item import Millis
from redrive.engine.cancelling import cancel_reason
from redrive.engine.heartbeat import EVERY, Heartbeat
from redrive.engine.maintainer import Maintainer
from redrive.engine.outbox import OutboxWorker
from redrive.errors import RedriveError
from redrive.events import CancelAsked, Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock

if TYPE_CHECKING:
    from redrive.mailboxes.boxes.message import StoreMessage

logger = logging.getLogger("redrive.mailboxes")

LATELY: Millis = 600_000
"""Whoever received within this time still serves the mailbox: it may be at work on what it got."""
ROUND: Millis = 60_000

Chore = Callable[[], Awaitable[object]]


class Loop(NamedTuple):
    """A loop of this process: how to tell it to end, and which messages it has in hand."""

    end: Callable[[], None]
    in_hand: Callable[[], Sequence[StoreMessage[Any, Any]]]


class Upkeep:
    def __init__(self, worker: str, store: Store, events: Events, clock: Clock) -> None:
        self._worker = worker
        self._store = store
        self._clock = clock
        self._events = events
        self._maintainer = Maintainer(worker, store, events, clock)
        self.outbox = OutboxWorker(store, events, clock)
        self._loops: list[Loop] = []
        self._heartbeat = Heartbeat(
            worker,
            store,
            queues=self._lately,
            running=lambda: len(self._in_hand()),
            obey=self._end_loops,
            events=events,
            clock=clock,
        )
        self._chores: dict[object, Chore] = {}
        self._served: dict[str, Millis] = {}
        self._beat_at = self._chores_at = clock.monotonic()
        self._sweep_at = clock.monotonic() + ROUND
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timer: asyncio.Task[None] | None = None
        self.ended = False

    def add(self, owner: object, chore: Chore) -> None:
        """Something to do at the first look, and once a minute from then on. From any thread."""
        self._chores[owner] = chore
        self._chores_at = self._clock.monotonic()

    def remove(self, owner: object) -> None:
        self._chores.pop(owner, None)

    @contextmanager
    def attended(self, loop: Loop) -> Iterator[None]:
        """While the block runs, an operator's drain or stop ends the loop. From any thread."""
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.remove(loop)

    def _in_hand(self) -> list[StoreMessage[Any, Any]]:
        return [message for loop in tuple(self._loops) for message in loop.in_hand()]

    async def _beat(self) -> None:
        await self._heartbeat.beat()
        held = {message.id: message for message in self._in_hand() if not message.asked}
        if not held:
            return
        # A lease never gets shorter, so this only asks.
        leases = [message.lease for message in held.values()]
        for item_id in (await self._store.extend(leases, 1)).cancel_requested:
            message = held[item_id]
            message.asked = await cancel_reason(self._store, item_id)
            delivery = message.lease.delivery
            self._events.emit(CancelAsked(self._worker, message.mailbox_name, item_id, delivery, message.asked))

    def _end_loops(self, _command: str) -> None:
        """Each finishes the message that it works on, whatever the command: it runs in a thread of the user's."""
        for loop in tuple(self._loops):
            loop.end()

    def glance(self, queue: str) -> None:
        """In the loop: somebody receives from this mailbox. Next to nothing, unless something is due."""
        now = self._clock.monotonic()
        self._served[queue] = now
        if now >= min(self._beat_at, self._chores_at, self._sweep_at):
            self._see_to_it(now)
        if self._timer is None and isinstance(self._clock, SystemClock):
            self._timer = asyncio.create_task(self._tick())

    @property
    def at_work(self) -> bool:
        return bool(self._tasks)

    async def rest(self) -> None:
        """In the loop: until what was begun has ended."""
        await asyncio.gather(*self._tasks.values())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EVERY / 1000)
            self._see_to_it(self._clock.monotonic())

    def _see_to_it(self, now: Millis) -> None:
        if now >= self._beat_at:
            self._beat_at = now + EVERY
            if self._lately():
                self._begin("beat", self._beat)
        if now >= self._chores_at:
            self._chores_at = now + ROUND
            self._begin("chores", self._do_chores)
        if now >= self._sweep_at:
            self._sweep_at = now + ROUND
            self._begin("retention", self._maintainer.round)

    def _begin(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        """One at a time of each. What fails is only told: it is due again soon."""

        async def attempt() -> None:
            try:
                await work()
            except RedriveError as error:
                logger.debug("%s: %s did not work: %s", self._worker, what, error)
            except Exception:
                logger.exception("%s: %s failed", self._worker, what)
            finally:
                self._tasks.pop(what, None)

        if what not in self._tasks:
            self._tasks[what] = asyncio.create_task(attempt())

    def _lately(self) -> tuple[str, ...]:
        now = self._clock.monotonic()
        return tuple(sorted(queue for queue, at in self._served.items() if now - at < LATELY))

    async def _do_chores(self) -> None:
        for chore in tuple(self._chores.values()):
            try:
                await chore()
            except RedriveError as error:
                logger.debug("%s: a chore did not work: %s", self._worker, error)

    async def close(self) -> None:
        """Of the store, and of all that is done beside the calls: with the last mailbox, or with the process."""
        self.ended = True
        tasks = [*self._tasks.values(), *([] if self._timer is None else [self._timer])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.outbox.close()
        if self._lately():
            await self._heartbeat.end()
        await self._store.close()
