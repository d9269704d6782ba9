"""Dead `running` receipts of a lease whose end was said: they are not owed any more, and nobody is woken for them.

They are found by the gap that a dead one leaves before the final one of its lease, so that it costs nothing where there
is none, and whoever delivers the final one finds them, whichever process they died in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress

from redrive.app import Redrive
from redrive.core.filters import render
from redrive.core.item import Item, Millis
from redrive.core.select import And, Match, Or
from redrive.engine.signals import Cancel
from redrive.errors import PayloadUndecodable, RedriveError
from redrive.receipts._delivery import SUPERSEDED
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Envelope, final_id
from redrive.stores.base import PAGE_LIMIT

REASON = "the end of their leases was said"
AT_ONCE = 20
LEASES = 100
"""Looked for together."""


class Overtaken:
    def __init__(self, app: Redrive, queue: str, metrics: ReceiptMetrics) -> None:
        self._app = app
        self._queue = queue
        self._metrics = metrics
        self._ends: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def after(self, item: Item) -> Iterator[None]:
        """Around the delivery of what stands behind a gap. One that fails leaves all as it is."""
        try:
            yield
        except Cancel:
            # The broker does not know the lease any more, and that is its end too. Another final receipt than the first
            # may also be superseded because the first one is still on its way, which says nothing of its arrival.
            if _is_first(self._queue, item):
                self._said(item)
            raise
        if _is(item, final=True):
            self._said(item)

    def _said(self, item: Item) -> None:
        self._ends[_key(item)] = item.id
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._let_go())

    async def close(self, patience: Millis) -> None:
        """What is not reached by then is a letter until the next recovery, as after a crash."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=patience / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _let_go(self) -> None:
        try:
            while self._ends:
                ends = {key: self._ends.pop(key) for key in list(self._ends)[:LEASES]}
                # If the store fails they stay letters until the next recovery.
                with suppress(RedriveError):
                    await self._supersede(ends)
        finally:
            self._task = None

    async def _supersede(self, ends: dict[str, str]) -> None:
        async def supersede(item: Item) -> None:
            self._metrics.trying(item.id, "running", retry=False)
            raise Cancel(f"{SUPERSEDED}final receipt {ends[_key(item)]} ended the lease")

        async for ids in self._dead(ends):
            await self._app.letters.work(ids, supersede, reason=REASON, concurrency=AT_ONCE, early=True)

    async def _dead(self, keys: Iterable[str]) -> AsyncIterator[list[str]]:
        """Page by page. All leases are looked for at once: no index leads to the letters of one."""
        leases = Or(tuple([Match("key", "=", key) for key in keys]))
        where = render(And((Match("queue", "=", self._queue), leases)))
        cursor: str | None = None
        while True:
            page = await self._app.letters.find(where, limit=PAGE_LIMIT, cursor=cursor)
            ids = [item.id for item in page if _is(item, final=False)]
            if ids:
                yield ids
            cursor = page.next
            if cursor is None:
                return


def _key(item: Item) -> str:
    return "" if item.terms is None else item.terms.order_key


def _is(item: Item, *, final: bool) -> bool:
    try:
        return Envelope.decode(item.payload).open().final is final
    except PayloadUndecodable:
        return False


def _is_first(queue: str, item: Item) -> bool:
    """Whether it is the first final receipt of its lease."""
    try:
        envelope = Envelope.decode(item.payload)
        return item.id == final_id(queue, envelope.tenant_id, envelope.open().lease_id)
    except PayloadUndecodable:
        return False
