"""Puts receipts down before they are sent, each once; and takes back what is not owed any more."""

from __future__ import annotations

from contextlib import suppress

from redrive.app import Redrive
from redrive.core.item import Item, Millis, NewItem, Terms
from redrive.core.select import Ids
from redrive.core.states import TERMINAL, Disposition, State
from redrive.errors import NotFound, PayloadUndecodable, StoreError
from redrive.events import Enqueued, Event, Finished
from redrive.receipts._delivery import SUPERSEDED, Delivery
from redrive.receipts._waiting import Waiting
from redrive.receipts._writing import Writing
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Envelope, Receipt, content_id, order_key
from redrive.stores.base import Store
from redrive.stores.checks import taken
from redrive.stores.clock import Clock

AGAIN = "sent again"
LOOK_AGAIN: Millis = 500
"""At a letter that somebody else works on."""


class Outbox:
    """`waiting`: who waits for what was put. It hears of what is kept back by another receipt of its lease.

    `writing` goes along with the writes of the worker.
    """

    def __init__(
        self, app: Redrive, store: Store, queue: str, clock: Clock, *, delivery: Delivery, metrics: ReceiptMetrics
    ) -> None:
        self._app = app
        self._store = store
        self._queue = queue
        self._clock = clock
        self.writing = Writing(store, clock, lambda ids: app.events.emit(Enqueued(queue, ids)))
        self._delivery = delivery
        self._metrics = metrics
        self.waiting = Waiting(store, queue, clock, self._make_way)
        delivery.arrived = lambda item_id: self.waiting.end(item_id, delivered=True)
        self._running: dict[str, dict[str, None]] = {}
        self._keys: dict[str, str] = {}

    async def put(self, receipt: Receipt, envelope: Envelope, policy: str, chosen: str) -> str:
        """Durable when it returns. Gives the id of the item, which may have been there before. `policy`: the item's."""
        key = order_key(envelope.tenant_id, receipt.lease_id)
        if not receipt.final:
            # Before it is put: it may have ended when that returns.
            self._keys[chosen] = key
            self._running.setdefault(key, {})[chosen] = None
        try:
            put = await self._enqueue(receipt, envelope, chosen, Terms(order_key=key, policy=policy))
        except StoreError:
            self._metrics.store_failed()
            self._forget(chosen)
            raise
        if receipt.final:
            await self._supersede_running(key, put)
        return put

    async def _enqueue(self, receipt: Receipt, envelope: Envelope, chosen: str, terms: Terms) -> str:
        payload = envelope.encode()
        self._delivery.expect(payload, receipt, envelope)
        if await self.writing.put(NewItem(chosen, self._queue, payload, terms=terms)):
            return chosen
        self._delivery.forget(payload)
        if not await self._says_the_same(receipt, chosen):
            # The lease was ended before, in other words.
            other = content_id(self._queue, envelope.tenant_id, receipt)
            if other == chosen:
                raise taken(chosen, self._queue, self._queue)
            return await self._enqueue(receipt, envelope, other, terms)
        await self._again(chosen)
        return chosen

    async def _says_the_same(self, receipt: Receipt, there: str) -> bool:
        try:
            item = (await self._store.get(there)).item
        except NotFound:
            return True  # it ended and was pruned
        other = _receipt_of(item)
        return other is not None and receipt.repeats(other)

    async def _again(self, there: str) -> None:
        """It was sent before: whoever is dead is tried anew, and all else is left as it is."""
        with suppress(NotFound), self.waiting.unjudged(there):
            while await self._is_held_back(there):
                await self._clock.sleep(LOOK_AGAIN)
        await self.waiting.look([there])

    async def _is_held_back(self, there: str) -> bool:
        """Whether it is a letter that a recovery is just trying: only when that is over is known what became of it."""
        item = (await self._store.get(there)).item
        if item.letter is None:
            return False
        if item.letter.disposition is Disposition.TRASH:
            await self._app.letters.restore([there], reason=AGAIN)
        done = await self._app.letters.replay([there], reason=AGAIN)
        return bool(done.skipped) and item.lease_until is not None

    # --- what is not owed any more ---

    def hear(self, event: Event) -> None:
        if type(event) is not Finished:
            self.waiting.hear(event)
        elif event.queue == self._queue and event.state in TERMINAL:
            self.waiting.end(event.id, delivered=event.state == State.DONE)
            if event.id in self._keys:
                self._forget(event.id)

    def _forget(self, item_id: str) -> None:
        """It is not under way any more."""
        key = self._keys.pop(item_id, None)
        if key is not None:
            running = self._running.get(key, {})
            running.pop(item_id, None)
            if not running:
                self._running.pop(key, None)

    async def _supersede_running(self, key: str, final: str) -> None:
        self.waiting.watch(final)
        ids = list(self._running.get(key, ()))
        if ids:
            for each in ids:
                self._forget(each)
            # The final one is durable; if this fails it only waits for its turn.
            with suppress(StoreError):
                await self._cancel(ids, final)

    async def _make_way(self, held: Item) -> None:
        """For a final receipt that stands behind running ones which others sent, or which were there at the start."""
        receipt = _receipt_of(held)
        if receipt is None or not receipt.final:
            return
        before = (await self._store.get(held.id)).blocked_by
        items = [(await self._store.get(each)).item for each in before]
        running = [item.id for item in items if (other := _receipt_of(item)) is not None and not other.final]
        if running:
            await self._cancel(running, held.id)

    async def _cancel(self, ids: list[str], final: str) -> None:
        done = await self._app.cancel(ids, reason=f"{SUPERSEDED}final receipt {final}")
        for item in await self._store.find(Ids(done.changed), max(1, len(done.changed))):
            # One that runs is only asked, and its worker tells how it ended.
            if item.state is State.CANCELLED and not item.cancel:
                self._metrics.superseded["running"] += 1
                self.waiting.end(item.id, delivered=False)


def _receipt_of(item: Item) -> Receipt | None:
    try:
        return Envelope.decode(item.payload).open()
    except PayloadUndecodable:
        return None
