"""One try of one receipt, and what its end means: done, another try, a letter, or not owed any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache

from redrive.core.backoff import exponential
from redrive.core.classify import dead_on, retry_on
from redrive.core.item import Item, Millis
from redrive.core.policy import Policy
from redrive.core.policy_data import policy_text, resolve
from redrive.core.states import State
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
from redrive.receipts.model import Envelope, Receipt, check_sendable, final_id
from redrive.receipts.transports import Transport
from redrive.stores.base import Store

SUPERSEDED = "superseded: "
"""How the reason of a receipt begins that ended because it was not owed any more."""
LONGEST = 86_400.0
"""Seconds: nothing waits for longer than a day."""
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
def retries(max_attempts: int, backoff_base: float, jitter: float) -> str:
    """The policy of a receipt, as data: waits of `backoff_base` to the power of the tries so far, in seconds.

    A base below 1 is the wait each time: no wait gets shorter.
    """
    factor = max(1, int(backoff_base) if backoff_base == int(backoff_base) else backoff_base)
    base = timedelta(seconds=min(backoff_base, LONGEST))
    return policy_text({"backoff": exponential(base, factor, "1d", jitter), "max_attempts": max_attempts})


class Delivery:
    def __init__(self, transport: Transport, store: Store, queue: str, metrics: ReceiptMetrics) -> None:
        self._transport = transport
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self.arrived: Callable[[str], None] = lambda _: None
        """Told as soon as the target has it: whoever waits for that need not wait until it is written down too."""
        self._expected: dict[bytes, tuple[Receipt, Envelope]] = {}

    def expect(self, payload: bytes, receipt: Receipt, envelope: Envelope) -> None:
        """What was just written need not be read again for its first try."""
        if len(self._expected) < EXPECTED:
            self._expected[payload] = receipt, envelope

    def forget(self, payload: bytes) -> None:
        """It was there already, and may never come."""
        self._expected.pop(payload, None)

    def _take(self, payload: bytes) -> tuple[Receipt, Envelope]:
        return self._expected.pop(payload) if payload in self._expected else _read(payload)

    async def handle(self, item: Item) -> None:
        """The handler. What it raises is judged by the item's policy."""
        try:
            receipt, envelope = self._take(item.payload)
        except PayloadUndecodable as error:
            raise Dead(error.message) from error
        self._metrics.trying(item.id, receipt.status, retry=item.errors > 0)
        try:
            await self._deliver(item.id, receipt, envelope.tenant_id)
        except ReceiptSuperseded as error:
            raise Cancel(f"{SUPERSEDED}{error.message}") from None
        except ReceiptError as error:
            # The longer of the target's wait and ours counts.
            if error.retry_after is not None and error.retry_after * 1000 <= _own_wait(item):
                error.retry_after = None
            raise
        except StoreError as error:
            # Not the receipt's fault, nor the target's: it was not tried.
            raise Snooze("1s", note=f"whether the lease has ended could not be asked: {error}") from None
        self._metrics.arrived(item.id)
        self.arrived(item.id)

    async def deliver(self, item: Item) -> None:
        """One try, by whoever holds the item. Raises ReceiptError, PayloadUndecodable, StoreError."""
        receipt, envelope = _read(item.payload)
        await self._deliver(item.id, receipt, envelope.tenant_id)

    async def _deliver(self, key: str, receipt: Receipt, tenant_id: str | None) -> None:
        try:
            check_sendable(receipt)
        except InvalidReceipt as error:
            raise ReceiptRefused(f"{error.message}; it can only be discarded") from None
        end = final_id(self._queue, tenant_id, receipt.lease_id)
        if key != end:
            await self._look_for_final(end, another=receipt.final)
        await self._transport.deliver(receipt, key, tenant_id)

    async def _look_for_final(self, end: str, *, another: bool) -> None:
        """After the end of a job is said no progress is owed, and no other end unless the first one is dead: that has
        not arrived.
        """
        try:
            first = (await self._store.get(end)).item
            if another and first.state is State.DEAD:
                return
        except NotFound:
            if await self._store.tombstone(end) is None:
                return
        raise ReceiptSuperseded(f"final receipt {end} ended the lease")


def _own_wait(item: Item) -> Millis:
    policy, _ = resolve(POLICY, {}, "" if item.terms is None else item.terms.policy)
    return policy.backoff.delay(item.errors + 1, 0.5) or 0


def _read(payload: bytes) -> tuple[Receipt, Envelope]:
    envelope = Envelope.decode(payload)
    return envelope.open(), envelope
