"""What a worker holds and how much more it may ask for."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping

from redrive.core.item import Item, Millis
from redrive.core.lanes import CYCLE, WHOLE
from redrive.core.verbs import LeaseRequest, Leases, Want
from redrive.engine.ids import new_id
from redrive.engine.policies import Policies
from redrive.engine.registry import Handler, handler_of
from redrive.engine.runner import Run, Why

LEASE_LIMIT = 500
"""The largest batch asked for at once: a longer write would keep other writers waiting."""
HALVES_FROM = 200
"""Of so many slots on, a request asks for half of them at most: while the store is busy with one half, the handlers of
the other run. Fewer would not be worth a write of their own."""


class Demand:
    """Whether work is wanted: while it is not, the worker that has this demand leases nothing new."""

    def __init__(self) -> None:
        self.wanted = True
        self.changed: Callable[[], None] = lambda: None

    def set(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self.changed()


class Slots:
    """`running` are at work; `settling` have ended but the store has not answered yet, so their leases are kept.

    `most` bounds what runs at once over all queues, which otherwise have as many slots as their handlers allow.
    """

    def __init__(
        self,
        worker: str,
        handlers: Mapping[str, Handler],
        policies: Policies,
        busy_threads: Counter[str],
        most: int | None = None,
    ) -> None:
        self._worker = worker
        self.handlers = handlers
        self._policies = policies
        self._threads = busy_threads
        self._used = dict.fromkeys(handlers, 0)
        self._retrying = dict.fromkeys(handlers, 0)
        # A fleet that starts together must not have its turns for low items and for retries together.
        self._leased = {queue: random.randrange(CYCLE * WHOLE) for queue in handlers}  # noqa: S311
        self._turn = deque(handlers)
        self._giving_way = False
        allowed = sum(handler.concurrency for handler in handlers.values())
        self.most = slots = allowed if most is None else min(most, allowed)
        self._shared = slots < allowed
        self._batch = min(LEASE_LIMIT, slots if slots < HALVES_FROM else (slots + 1) // 2)
        self.shortest_lease: Millis = min(handler.lease for handler in handlers.values())
        self.running: dict[str, Run] = {}
        self.settling: dict[str, Run] = {}

    def held(self) -> Iterator[Run]:
        yield from tuple(self.running.values())
        yield from tuple(self.settling.values())

    def queues(self) -> list[str]:
        """Those that are served, and the members of families that run."""
        return list(dict.fromkeys([*self.handlers, *(run.item.queue for run in self.running.values())]))

    def free(self, queue: str) -> int:
        handler = self.handlers[queue]
        used = self._used[queue] if handler.all_async else max(self._used[queue], self._threads[queue])
        return handler.concurrency - used

    def request(self) -> LeaseRequest | None:
        """None when nothing may be asked for: no free slot, or a suspect needs this worker to itself."""
        if self._giving_way and self.running:
            return None
        self._giving_way = False
        if any(run.item.alone for run in self.running.values()):
            return None
        wants, room = [], min(self._batch, self.most - len(self.running)) if self._shared else self._batch
        for queue in self._turn:
            limit = min(self.free(queue), room)
            if limit > 0:
                room -= limit
                wants.append(self._want(self.handlers[queue], limit))
        if not wants:
            return None
        return LeaseRequest(self._worker, tuple(wants), new_id(), holding=len(self.running))

    def _want(self, handler: Handler, limit: int) -> Want:
        queue = handler.queue
        share = self._policies.settings.known(queue).retry_share
        return Want(
            queue,
            limit,
            handler.lease,
            self._policies.max_crashes(handler),
            retries=None if share is None else self._retries(handler, share),
            turn=self._leased[queue],
            share=None if share is None else max(1, round(share * WHOLE)),
            kinds=handler.kinds,
        )

    def _retries(self, handler: Handler, share: float) -> int:
        """How many more slots retries and replays may have while first attempts wait: one at least, in its turn."""
        return max(0, max(1, int(share * handler.concurrency)) - self._retrying[handler.queue])

    def request_item(self, item_id: str, queue: str) -> LeaseRequest:
        """A request for this one item, of a worker that has nothing."""
        return LeaseRequest(self._worker, (self._want(self.handlers[queue], 1),), new_id(), item=item_id)

    def take_back(self, item: Item) -> bool:
        """Whether a reclaimed item is one of ours whose lease had just run out: it goes on under the new number."""
        run = self.running.get(item.id) or self.settling.get(item.id)
        if run is None or run.item.deliveries + 1 != item.deliveries or run.why is Why.LOST:
            return False
        run.item = item
        run.kept = None
        return True

    def with_room(self) -> frozenset[str]:
        """Queues that more could be leased from, whether or not the next request has room for them."""
        if self._shared and len(self.running) >= self.most:
            return frozenset()
        return frozenset([queue for queue in self._turn if self.free(queue) > 0])

    def take(self, leases: Leases, now: Millis) -> list[Run]:
        self._turn.rotate(-1)  # every queue is first in turn
        self._giving_way = leases.suspects_due
        return [self._add(item, now) for item in leases.items]

    def displaced(self, leases: Leases) -> list[Run]:
        """Runs whose lease lapsed unnoticed: the store has given their items out again, to this very worker."""
        lost = [run for item in leases.items if (run := self.running.get(item.id)) is not None]
        for run in lost:
            self.end(run)
        return lost

    def _add(self, item: Item, now: Millis) -> Run:
        handler = self.handlers.get(item.queue) or handler_of(self.handlers, item.queue)
        run = Run(item, handler.for_kind(item.kind) if handler.others else handler, now)
        self._used[handler.queue] += 1
        self._leased[handler.queue] += 1
        self._retrying[handler.queue] += run.again
        self.running[item.id] = run
        return run

    def end(self, run: Run) -> bool:
        """False if the run was given up before."""
        if self.running.get(run.item.id) is not run:
            return False
        del self.running[run.item.id]
        self._used[run.handler.queue] -= 1
        self._retrying[run.handler.queue] -= run.again
        return True
