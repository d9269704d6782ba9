"""Outbox queues: deliveries to other systems, one queue per target.

An outbox item is an item of the queue `redrive.outbox.<target>`. It is put as a follow-up, in the write that settles
the item which caused it, so that neither happens without the other. A worker leases an outbox queue only in a process
that registered its target with a `deliver` function. Each queue has its own circuit breaker, a short `keep`, and a
policy of about an hour, after which the item is a dead letter with the reason `undeliverable`. The item may be
delivered more than once: `destination_id` gives the id under which a repetition adds nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import NamedTuple

from redrive.core import gate as breakers
from redrive.core.backoff import exponential
from redrive.core.item import Item, Millis, NewItem
from redrive.core.policy import Policy
from redrive.core.verbs import QueueChange
from redrive.engine.ids import new_id
from redrive.engine.registry import OUTBOX, Handler, Signature, check_queue_name, is_outbox
from redrive.engine.signals import Dead, Signal
from redrive.errors import ConfigError, Conflict
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock, SystemClock

logger = logging.getLogger("redrive")

Deliver = Callable[[Item], object]

MAX_ATTEMPTS = 20
POLICY = Policy(exponential("1s", factor=2, cap="5m"), MAX_ATTEMPTS)
"""Somewhat more than an hour."""
BREAKER = breakers.gate_config(longest="5m", retry_share=None)
LEASE: Millis = 60_000
TIMEOUT: Millis = 60_000
KEEP: Millis = 3_600_000
STOP_GRACE: Millis = 5_000


class Undeliverable(Dead):
    """No further attempt is made."""

    letter_reason = "undeliverable"


def outbox_queue(target: object) -> str:
    """The queue of a target. Raises ConfigError for a name that cannot be one."""
    if not isinstance(target, str) or not target:
        raise ConfigError(f"{target!r} is not the name of a target", field="target", hint="use a name such as 'mail'")
    return check_queue_name(f"{OUTBOX}{target}")


def target_of(queue: str) -> str:
    return queue.removeprefix(OUTBOX)


def breaker_of(target: str) -> str:
    """The name of a target's circuit breaker."""
    return breakers.check_gate_name(f"outbox.{target}")


def outbox_item(target: str, payload: bytes) -> NewItem:
    """For the follow-ups of a settlement."""
    return NewItem(new_id(), outbox_queue(target), payload)


def destination_id(item: Item) -> str:
    """The id under which what an outbox item delivers is put at its destination: the same for every attempt."""
    return hashlib.sha256(f"outbox:{item.id}".encode()).hexdigest()[:32]


def outbox_handler(target: str, deliver: Deliver, *, concurrency: int) -> Handler:
    """The handler of a target's queue: `deliver` in the event loop, or in a thread if it is not async."""
    if not callable(deliver):
        raise ConfigError(f"{deliver!r} is not a function", field="deliver", hint="give a function that takes an Item")
    is_async = inspect.iscoroutinefunction(deliver) or inspect.iscoroutinefunction(getattr(deliver, "__call__", None))  # noqa: B004

    async def in_loop(item: Item) -> None:
        with _attempt(item):
            await deliver(item)  # type: ignore[misc]  # by is_async

    def in_thread(item: Item) -> None:
        with _attempt(item):
            deliver(item)

    function = in_loop if is_async else in_thread
    queue, signature = outbox_queue(target), Signature(function)
    return Handler(queue, function, POLICY, LEASE, TIMEOUT, concurrency, is_async, signature)


@contextmanager
def _attempt(item: Item) -> Iterator[None]:
    try:
        yield
    except Signal:
        raise
    except Exception as error:
        if item.errors + 1 < MAX_ATTEMPTS:
            raise
        raise Undeliverable(str(error)) from error


class Registration(NamedTuple):
    target: str
    deliver: Deliver
    breaker: bool


class OutboxWorker:
    """Delivers from the outbox queues of one store, in a process that has no app to do it.

    A registration covers a target and its parts, `target@part`, each with a queue and a circuit breaker of its own;
    `breaker`: whether the target itself has one. The worker runs in the background, as soon as there is something; a
    clock of tests has no background. All coroutines run in one event loop.
    """

    def __init__(self, store: Store, events: Events, clock: Clock) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._registered: dict[str, list[Registration]] = {}
        self._handlers: dict[str, Handler] = {}
        self._background: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._changed = False

    def register(self, target: str, deliver: Deliver, *, breaker: bool = True) -> Registration:
        """From any thread. The first `deliver` of a target is used while it is registered."""
        registration = Registration(target, deliver, breaker)
        self._registered.setdefault(target, []).append(registration)
        return registration

    async def release(self, registration: Registration) -> None:
        """End a registration. After the last one the worker has ended, with what it had in hand."""
        others = self._registered[registration.target]
        others.remove(registration)
        if not others:
            del self._registered[registration.target]
        for queue in [each for each in self._handlers if target_of(each).partition("@")[0] == registration.target]:
            del self._handlers[queue]
            if others:
                self._handlers[queue] = outbox_handler(target_of(queue), others[0].deliver, concurrency=1)
            self._restart()
        if not self._handlers and self._background is not None:
            await self._background

    def serves(self, target: str) -> bool:
        """Whether the worker in the background leases the queue of this target."""
        return self._background is not None and outbox_queue(target) in self._handlers

    @property
    def in_background(self) -> bool:
        return self._background is not None

    async def look(self, *, wait: bool) -> None:
        """Serve the registered targets that have items. `wait`, or without a background: for one attempt at each item
        that is due. Raises StoreError.
        """
        for row in (await self._store.tally(members=False)).queues:
            target = target_of(row.queue)
            found = self._registered.get(target.partition("@")[0]) if is_outbox(row.queue) else None
            if found and row.queue not in self._handlers and row.ready + row.leased:
                if row.settings.keep is None:
                    await self._declare(row.queue, breaker=found[0].breaker or target != found[0].target)
                self._handlers[row.queue] = outbox_handler(target, found[0].deliver, concurrency=1)
                self._restart()
        if self._handlers and (wait or self._background is None):
            # In a context of its own: its sleepers are not those of the caller.
            await asyncio.get_running_loop().create_task(self._work(once=True), context=Context())

    async def close(self) -> None:
        """Before the store is closed."""
        self._handlers.clear()
        if self._background is not None:
            self._background.cancel()
            await asyncio.wait({self._background})

    async def _declare(self, queue: str, *, breaker: bool) -> None:
        name, state = breaker_of(target_of(queue)), breakers.GateState()
        if breaker and await self._store.gate(name) is None:
            with suppress(Conflict):  # another process was faster
                await self._store.set_gate(breakers.write(name, 0, state, state, BREAKER))
        await self._store.configure(queue, QueueChange(keep=KEEP, gate=name if breaker else ""))

    def _restart(self) -> None:
        """Have the worker in the background serve the targets as they are now."""
        self._changed = True
        self._stop.set()
        if self._handlers and self._background is None and isinstance(self._clock, SystemClock):
            self._background = asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def _run(self) -> None:
        try:
            # A worker that ends although nothing has changed was stopped by an operator.
            while self._handlers and self._changed:
                self._changed, self._stop = False, asyncio.Event()
                await self._work(once=False)
        except Exception:
            logger.exception("the outbox worker failed; outbox items wait for the next look")
        finally:
            self._background = None

    async def _work(self, *, once: bool) -> None:
        # Most processes have nothing to deliver, and start sooner without it.
        from redrive.engine.worker import Worker

        events, clock = self._events, self._clock
        worker = Worker(self._store, self._handlers, events=events, clock=clock, frames=False, max_result=0, once=once)
        await worker.run(asyncio.Event() if once else self._stop, asyncio.Event(), STOP_GRACE)
