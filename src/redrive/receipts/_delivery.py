"""One attempt to deliver a receipt, as a handler of the engine: done, retry, dead letter or superseded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache

from redrive.app.internals import Store
from redrive.core import codec
from redrive.core.backoff import exponential
from redrive.core.classify import dead_on, retry_on
from redrive.core.item import Item, Millis
from redrive.core.policy import Policy
from redrive.core.policy_data import policy_text, resolve
from redrive.core.states import State
from redrive.core.verbs import DocumentWrite
from redrive.engine.signals import Cancel, Dead, Snooze
from redrive.errors import (
    InvalidReceipt,
    NotFound,
    PayloadUndecodable,
    ReceiptError,
    ReceiptLimited,
    ReceiptRefused,
    ReceiptServerError,
    ReceiptSuperseded,
    ReceiptUnreachable,
    StoreError,
)
from redrive.receipts.metrics import ReceiptMetrics
from redrive.receipts.model import Receipt, check_sendable, final_id, unpack
from redrive.receipts.transports import Transport

SUPERSEDED = "superseded: "
"""The beginning of the reason of a superseded receipt."""
ENDED_BY = "receipts-ended-by"
"""A document under the id of a dead first final receipt: the id of another final one that was delivered."""
LONGEST = 86_400.0
"""Seconds: the longest wait."""
EXPECTED = 1_000
POLICY = Policy(
    exponential("2s", factor=2, cap="1d"),
    max_attempts=5,
    max_crashes=5,
    rules=(
        dead_on(ReceiptRefused, category="rejected"),
        retry_on(ReceiptLimited, category="rate_limit"),
        retry_on(ReceiptServerError, category="server"),
        retry_on(ReceiptUnreachable, category="connection"),
    ),
)


@lru_cache(maxsize=128)
def retry_policy(max_attempts: int, backoff_base: float, jitter: float) -> str:
    """The policy of a receipt, as data: waits of `backoff_base` to the power of the attempts so far, in seconds.

    A base below 1 is the wait each time: no wait gets shorter.
    """
    factor = max(1, int(backoff_base) if backoff_base == int(backoff_base) else backoff_base)
    base = timedelta(seconds=min(backoff_base, LONGEST))
    return policy_text({"backoff": exponential(base, factor, "1d", jitter), "max_attempts": max_attempts})


class Delivery:
    """`delivered` is called as soon as the target has a receipt, before that is settled."""

    def __init__(self, transport: Transport, store: Store, queue: str, metrics: ReceiptMetrics) -> None:
        self._transport = transport
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self.delivered: Callable[[str], None] = lambda _: None
        self._expected: dict[bytes, tuple[Receipt, str | None]] = {}

    def expect(self, payload: bytes, receipt: Receipt, tenant_id: str | None) -> None:
        """A payload that was just written need not be decoded for its first attempt."""
        if len(self._expected) < EXPECTED:
            self._expected[payload] = receipt, tenant_id

    def forget(self, payload: bytes) -> None:
        self._expected.pop(payload, None)

    async def handle(self, item: Item) -> None:
        """The handler. The item's policy decides on what it raises."""
        try:
            known = item.payload in self._expected
            receipt, tenant_id = self._expected.pop(item.payload) if known else unpack(item.payload)
        except PayloadUndecodable as error:
            raise Dead(error.message) from error
        self._metrics.trying(item.id, receipt.status, retry=item.errors > 0)
        try:
            await self._deliver(item, receipt, tenant_id)
        except ReceiptSuperseded as error:
            raise Cancel(f"{SUPERSEDED}{error.message}") from None
        except ReceiptError as error:
            # The longer of the target's wait and ours counts.
            if error.retry_after is not None and error.retry_after * 1000 <= _own_wait(item):
                error.retry_after = None
            raise
        except StoreError as error:
            # The receipt was not sent, or is sent again with the same key: no attempt.
            raise Snooze("1s", note=f"the store could not read or write how the lease ended: {error}") from None
        self._metrics.arrived(item.id)
        self.delivered(item.id)

    async def deliver(self, item: Item) -> None:
        """One attempt, by the holder of the item. Raises ReceiptError, PayloadUndecodable, StoreError."""
        await self._deliver(item, *unpack(item.payload))

    async def _deliver(self, item: Item, receipt: Receipt, tenant_id: str | None) -> None:
        try:
            check_sendable(receipt)
        except InvalidReceipt as error:
            raise ReceiptRefused(f"{error.message}; it can only be discarded") from None
        final = final_id(self._queue, tenant_id, receipt.lease_id)
        ended_by = await self._ended_by(item, final, is_final=receipt.final)
        if ended_by:
            raise ReceiptSuperseded(f"final receipt {ended_by} ended the lease")
        await self._transport.deliver(receipt, item.id, tenant_id)
        if receipt.final and item.id != final:
            # Before the item is settled: after a crash in between it is delivered again.
            await self._store.write_documents([DocumentWrite(ENDED_BY, final, codec.encode(item.id))])

    async def _ended_by(self, item: Item, final: str, *, is_final: bool) -> str:
        """The id of the final receipt that ended the lease, else "". A dead first one does not end it for another.

        A first final receipt that was never dead needs no read: none but a dead one lets another be delivered.
        """
        if item.id != final:
            try:
                first = (await self._store.get(final)).item
            except NotFound:
                return "" if await self._store.tombstone(final) is None else final
            if not is_final or first.state is not State.DEAD:
                return final
        elif item.letter is None and not item.replays:
            return ""
        other = await self._store.document(ENDED_BY, final)
        ended_by = "" if other is None else codec.decode(other.body, str)
        return "" if ended_by == item.id else ended_by


def _own_wait(item: Item) -> Millis:
    policy, _ = resolve(POLICY, {}, "" if item.terms is None else item.terms.policy)
    return policy.backoff.delay(item.errors + 1, 0.5) or 0
