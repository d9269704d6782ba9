"""The outbox of a client: writes receipts before they are sent, each once, and cancels those that are superseded."""

from __future__ import annotations

from contextlib import suppress

from redrive.app import Redrive
from redrive.app.internals import store_of, taken
from redrive.core.item import Item, Millis, NewItem, Terms
from redrive.core.states import TERMINAL, Disposition, State
from redrive.engine.waiting import Waiting
from redrive.engine.write_hook import WriteHook
from redrive.errors import NotFound, StoreError
from redrive.events import Enqueued, Event, Finished
from redrive.office.bites import items_of
from redrive.receipts._delivery import SUPERSEDED, Delivery
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Envelope, Receipt, content_id, order_key, receipt_in
from redrive.stores.clock import Clock

SENT_AGAIN = "sent again"
OUTAGE = "the receipt is durable, and is delivered when the store is back"
LOOK_AGAIN: Millis = 500
"""The pause between two looks at a letter that a recovery works on."""


class Outbox:
    """`writes` is the write hook of the worker, `waiting` has the callers that wait for a delivery."""

    def __init__(self, app: Redrive, queue: str, clock: Clock, *, delivery: Delivery, metrics: ReceiptMetrics) -> None:
        self._app = app
        self._store = store_of(app)
        self._queue = queue
        self._clock = clock
        self.writes = WriteHook(self._store, clock, lambda ids: app.events.emit(Enqueued(queue, ids)))
        self._delivery = delivery
        self._metrics = metrics
        self.waiting = Waiting(self._store, clock, self._unblock, hint=OUTAGE)
        delivery.delivered = lambda item_id: self.waiting.end(item_id, done=True)
        self._running: dict[str, set[str]] = {}
        """The ids of running receipts that have not ended, by order key."""
        self._keys: dict[str, str] = {}

    async def put(self, receipt: Receipt, envelope: Envelope, policy: str, chosen: str) -> str:
        """Durable when it returns. Gives the id of the item, which may have existed before. `policy`: the item's."""
        key = order_key(envelope.tenant_id, receipt.lease_id)
        if not receipt.final:  # before it is put: it may have ended when that returns
            self._keys[chosen] = key
            self._running.setdefault(key, set()).add(chosen)
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
        self._delivery.expect(payload, receipt, envelope.tenant_id)
        if await self.writes.put(NewItem(chosen, self._queue, payload, terms=terms)):
            return chosen
        self._delivery.forget(payload)
        if not await self._is_repeat(receipt, chosen):  # another final receipt of the lease has the id
            other = content_id(self._queue, envelope.tenant_id, receipt)
            if other == chosen:
                raise taken(chosen, self._queue, self._queue)
            return await self._enqueue(receipt, envelope, other, terms)
        await self._replay_dead(chosen)
        return chosen

    async def _is_repeat(self, receipt: Receipt, there: str) -> bool:
        try:
            other = receipt_in((await self._store.get(there)).item.payload)
        except NotFound:
            return True  # it ended and was pruned
        return other is not None and receipt.repeats(other)

    async def _replay_dead(self, there: str) -> None:
        """A receipt that is sent again: a dead letter is replayed, after a recovery that is working on it."""
        with suppress(NotFound), self.waiting.undecided(there):
            while await self._is_locked(there):
                await self._clock.sleep(LOOK_AGAIN)
        await self.waiting.look([there])

    async def _is_locked(self, there: str) -> bool:
        item = (await self._store.get(there)).item
        if item.letter is None:
            return False
        if item.letter.disposition is Disposition.TRASH:
            await self._app.letters.restore([there], reason=SENT_AGAIN)
        done = await self._app.letters.replay([there], reason=SENT_AGAIN)
        return bool(done.skipped) and item.lease_until is not None

    # --- superseded receipts ---

    def on_event(self, event: Event) -> None:
        if type(event) is not Finished:
            self.waiting.on_event(event)
        elif event.queue == self._queue and event.state in TERMINAL:
            self.waiting.end(event.id, done=event.state == State.DONE)
            self._forget(event.id)

    def _forget(self, item_id: str) -> None:
        key = self._keys.pop(item_id, None)
        if key is not None:
            running = self._running.get(key, set())
            running.discard(item_id)
            if not running:
                self._running.pop(key, None)

    async def _supersede_running(self, key: str, final: str) -> None:
        self.waiting.watch(final)
        ids = list(self._running.get(key, ()))
        for each in ids:
            self._forget(each)
        if ids:
            with suppress(StoreError):  # the final one is durable, and only waits for its turn
                await self._cancel(ids, final)

    async def _unblock(self, held: Item) -> None:
        """For a final receipt behind running ones that another process sent, or that were there at the start."""
        receipt = receipt_in(held.payload)
        if receipt is None or not receipt.final:
            return
        before = (await self._store.get(held.id)).blocked_by
        items = [(await self._store.get(each)).item for each in before]
        running = [item.id for item in items if (other := receipt_in(item.payload)) is not None and not other.final]
        if running:
            await self._cancel(running, held.id)

    async def _cancel(self, ids: list[str], final: str) -> None:
        done = await self._app.cancel(ids, reason=f"{SUPERSEDED}final receipt {final}")
        for item in await items_of(self._store, done.changed):
            # A running item is only asked to end, and its worker emits how it ended.
            if item.state is State.CANCELLED and not item.cancel:
                self._metrics.superseded["running"] += 1
                self.waiting.end(item.id, done=False)
