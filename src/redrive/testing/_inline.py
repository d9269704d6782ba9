"""Handlers that run inside `enqueue`: for tests of code that relies on what its items do.

    with inline(app):
        await sign_up("ada@example.com")        # the mail has been sent when this returns
        assert outbox == ["ada@example.com"]

The item is real: put, leased, settled. Only the worker is missing, and the error of the handler has somebody to go to.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from redrive import events as ev
from redrive.app.internals import parts_of
from redrive.app.lifecycle import AppParts
from redrive.core import outcome as o
from redrive.core.decide import Charge, ToReady, decide
from redrive.core.families import family_of
from redrive.core.item import Attempt, Ending, Item, Millis
from redrive.core.verbs import LeaseRequest, Settlement, Want
from redrive.engine.asks import Asks
from redrive.engine.client import Client
from redrive.engine.ids import ItemId, new_id
from redrive.engine.policies import Policies
from redrive.engine.registry import Handler
from redrive.engine.report import attempt_of, settle_event
from redrive.engine.runner import Run, Runner, Why
from redrive.engine.settings import Settings
from redrive.errors import EncryptionKeyMissing
from redrive.testing import _inside
from redrive.testing._inside import AnyApp
from redrive.testing._spy import Spy

LIMIT = 10_000
DEEPEST = 100

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("redrive_inline_depth", default=0)
"""So many items behind one `enqueue` are taken for an endless loop of follow-ups."""
EVERYTHING = 1_000_000
LEASE: Millis = 24 * 3_600_000
"""Nobody prolongs it."""


@contextmanager
def inline(app: AnyApp) -> Iterator[None]:
    """In the block `enqueue` returns when the handler has run, and raises what the handler raised.

    So do follow-ups, and what handlers enqueue. What has a delay waits, also for its retry: `drain` it, or assert that
    it is there. A plain `with`, in async tests too, and for apps of either colour. May be nested.
    """
    parts = parts_of(_inside.plain(app))
    client = parts.client
    parts.client = _InlineClient(parts)
    try:
        yield
    finally:
        parts.client = client


class _InlineClient(Client):
    def __init__(self, parts: AppParts) -> None:
        vars(self).update(vars(parts.client))
        self._worker = f"inline-{os.getpid()}-{new_id()[:8]}"
        self._frames = parts.frames
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def enqueue(
        self, queue: str, payload: object, asks: Asks, item_id: str | None, within: object | None
    ) -> ItemId:
        key = await super().enqueue(queue, payload, asks, item_id, within)
        if not key.duplicate:
            await self._work_off([(queue, key)])
        return key

    async def enqueue_many(
        self, queue: str, payloads: Iterable[object], asks: Asks, within: object | None
    ) -> list[ItemId]:
        keys = await super().enqueue_many(queue, payloads, asks, within)
        await self._work_off([(queue, key) for key in keys if not key.duplicate])
        return keys

    async def _work_off(self, keys: Sequence[tuple[str, str]]) -> None:
        """These and their follow-ups; one that fails does not keep the others from running."""
        if _depth.get() >= DEEPEST:
            raise AssertionError(f"inline: {DEEPEST} enqueues inside each other, and there are more; an endless loop?")
        waiting = deque(keys)
        errors: list[BaseException] = []
        runs = 0
        while waiting:
            run, error = await self._attempt(*waiting.popleft())
            if error is not None:
                errors.append(error)
            if run is not None and isinstance(run.outcome, o.Done):
                waiting.extend((new.queue, new.id) for new in run.follow_ups)
            runs += 1
            if runs - len(keys) > LIMIT:
                raise AssertionError(f"inline: more than {LIMIT:,} follow-ups, and there are more; an endless loop?")
        if len(errors) > 1:
            raise BaseExceptionGroup(f"{len(errors)} items failed", errors)
        if errors:
            raise errors[0]

    async def _attempt(self, queue: str, item_id: str) -> tuple[Run | None, BaseException | None]:
        handler = self._registry.handlers.get(queue) or self._registry.handlers.get(family_of(queue))
        item = None if handler is None else await self._lease(queue, handler, item_id)
        handler = handler if handler is None or item is None else handler.for_kind(item.kind)
        if handler is None or item is None:
            return None, None
        spy = Spy()
        run = Run(item, spy.on(handler), self._clock.monotonic())
        cancelled = await self._handle(run)
        event = await self._settle(run)
        if cancelled is not None:
            raise cancelled
        if not isinstance(run.outcome, o.Fail | o.Retry | o.Limited | o.Dead | o.Expired):
            return run, None
        failure = run.outcome.failure
        ending = (event.state, event.reason) if isinstance(event, ev.Finished) else ("leased", "lost")
        return run, spy.error(queue, item_id, f"{failure.type}: {failure.text}", *ending)

    async def _lease(self, queue: str, handler: Handler, item_id: str) -> Item | None:
        """This very item, if it is due. What else was due in its queue is given back: it waits for a worker."""
        want = Want(queue, EVERYTHING, LEASE, max_crashes=EVERYTHING, kinds=handler.kinds)
        # One at a time: what is in hand to be given back would seem not to be due to others.
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            leases = await self._store.lease(LeaseRequest(self._worker, (want,), new_id()))
            others = [item for item in leases.items if item.id != item_id]
            if others:
                await self._store.settle([self._given_back(item) for item in others])
        item = next((item for item in leases.items if item.id == item_id), None)
        if item is None and leases.locked and not self._store.info().keys:
            raise EncryptionKeyMissing(leases.locked)
        return item

    def _given_back(self, item: Item) -> Settlement:
        attempt = Attempt(
            delivery=item.deliveries,
            number=item.attempt,
            worker=self._worker,
            started_at=item.leased_at or 0,
            ran=0,
            ending=Ending.RELEASED,
            note="another item of its queue was run inline",
        )
        return Settlement(item.id, item.deliveries, ToReady(0, Charge.NOTHING), attempt)

    async def _handle(self, run: Run) -> asyncio.CancelledError | None:
        """As a worker does, in a context of its own. Cancelled with its caller, whose error is returned."""
        item = run.item
        runner = Runner(
            self._clock,
            Policies(self._registry.policies, Settings(self._store, self._clock)),
            threads=1,
            frames=self._frames,
            max_result=self._max_payload,
            thread_freed=lambda: None,
        )
        self._events.emit(ev.Started(self._worker, item.queue, item.id, item.deliveries, item.attempt))
        run.begun = True
        inside = _depth.set(_depth.get() + 1)
        task = asyncio.create_task(runner.handle(run))
        _depth.reset(inside)
        cancelled = None
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
            run.why = Why.SHUTDOWN
            task.cancel()
            outcome = await task
        finally:
            runner.close()
        run.outcome = o.Release("its lease was lost") if outcome is None else outcome
        run.ended = self._clock.monotonic()
        return cancelled

    async def _settle(self, run: Run) -> ev.Event:
        item, outcome = run.item, run.outcome
        done = isinstance(outcome, o.Done)
        roll = random.random()
        decision = decide(item, outcome, run.policy, roll=roll, age=run.age(run.ended))
        if run.offered and not await Settings(self._store, self._clock).encrypts(item.queue):
            run.output = run.offered
        plain = done and item.deliveries == 1 and not run.output
        attempt = None if plain else attempt_of(run, self._worker, release=self._release)
        follow_ups = run.follow_ups if done else ()
        settlement = Settlement(item.id, item.deliveries, decision, attempt, follow_ups, queue=item.queue)
        settled = await self._store.settle([settlement])
        event = settle_event(self._worker, run, settlement, settled.answers[0])
        self._events.emit(event)
        return event
