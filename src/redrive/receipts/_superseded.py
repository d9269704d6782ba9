"""Ends the dead receipts of a lease when a final receipt of it has been delivered.

A dead item leaves a gap before the later ones of its order key. So the look for dead receipts costs nothing where there
are none, and the process that delivers the final receipt finds them, in whatever process they died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redrive.app import Redrive
from redrive.app.internals import PAGE_LIMIT, store_of
from redrive.core.filters import render
from redrive.core.item import Item, Millis
from redrive.core.select import And, Match, Or
from redrive.core.verbs import DocumentWrite
from redrive.engine.signals import Cancel
from redrive.errors import PayloadUndecodable, RedriveError
from redrive.office.bites import pages
from redrive.receipts._delivery import ENDED_BY, SUPERSEDED
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import final_id, receipt_in, unpack

REASON = "their leases have ended"
AT_ONCE = 20
LEASES = 100
"""Leases of one search: no index leads to the letters of a lease."""


class SupersededLetters:
    def __init__(self, app: Redrive, queue: str, metrics: ReceiptMetrics) -> None:
        self._app = app
        self._queue = queue
        self._metrics = metrics
        self._ended: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def after(self, item: Item) -> Iterator[None]:
        """Around the delivery of an item behind a gap. If it fails, all stays as it is."""
        try:
            yield
        except Cancel:
            # The broker no longer knows the lease: it has ended too. A later final receipt may be superseded while the
            # first one is on its way, and proves nothing.
            if self._is_first_final(item):
                self._end(item)
            raise
        receipt = receipt_in(item.payload)
        if receipt is not None and receipt.final:
            self._end(item)

    def _is_first_final(self, item: Item) -> bool:
        try:
            receipt, tenant_id = unpack(item.payload)
            return item.id == final_id(self._queue, tenant_id, receipt.lease_id)
        except PayloadUndecodable:
            return False

    def _end(self, item: Item) -> None:
        self._ended[_key(item)] = item.id
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self, patience: Millis) -> None:
        """Letters that are not reached within `patience` stay until the next recovery, as after a crash."""
        task = self._task
        if task is not None:
            await asyncio.wait([task], timeout=patience / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._ended:
                ended = {key: self._ended.pop(key) for key in list(self._ended)[:LEASES]}
                with suppress(RedriveError):  # they stay letters until the next recovery
                    await self._supersede(ended)
        finally:
            self._task = None

    async def _supersede(self, ended: dict[str, str]) -> None:
        async def supersede(item: Item) -> None:
            self._metrics.trying(item.id, unpack(item.payload)[0].status, retry=False)
            raise Cancel(f"{SUPERSEDED}final receipt {ended[_key(item)]} ended the lease")

        leases = Or(tuple([Match("key", "=", key) for key in ended]))
        where = render(And((Match("queue", "=", self._queue), leases)))
        async for page in pages(lambda cursor: self._app.letters.find(where, limit=PAGE_LIMIT, cursor=cursor)):
            ids = [item.id for item in page if receipt_in(item.payload) is not None and item.id != ended[_key(item)]]
            if ids:
                done = await self._app.letters.work(ids, supersede, reason=REASON, concurrency=AT_ONCE, early=True)
                # A first final receipt that is cancelled ends its lease without the document.
                firsts = {item.id for item in page if self._is_first_final(item)}
                writes = [DocumentWrite(ENDED_BY, each.id, None) for each in done.cancelled if each.id in firsts]
                if writes:
                    await store_of(self._app).write_documents(writes)


def _key(item: Item) -> str:
    return "" if item.terms is None else item.terms.order_key
