"""A target without sockets: answers as it is scripted, and remembers what came and when."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from redrive.errors import ReceiptLimited, ReceiptRefused, ReceiptServerError, ReceiptSuperseded
from redrive.receipts import Receipt, ReceiptClient
from redrive.receipts.transports import Transport
from redrive.testing.clock import FakeClock
from tests.support.lab import Lab, Shared

SERVER = ReceiptServerError("the target answered 500", code="500")
LIMITED = ReceiptLimited("the target answered 429", code="429")
REFUSED = ReceiptRefused("the target answered 400", code="400")
GONE = ReceiptSuperseded("the target refused it LEASE_INVALID_OR_EXPIRED", code="LEASE_INVALID_OR_EXPIRED")
UNREACHABLE = ConnectionRefusedError("nobody listens there")


class Mute(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def receipt(lease: str = "lease-1", status: str = "complete", **more: Any) -> dict[str, Any]:
    """As the seed has it."""
    return {
        "lease_id": lease,
        "task_id": "task-456",
        "worker_id": "cognigate-0",
        "status": status,
        "timestamp": "2024-01-15T10:30:00Z",
        "summary": "Task completed successfully",
        "artifact_pointers": ["s3://bucket/results.json"],
    } | more


class Target:
    """A transport of one's own. `then`: what all calls meet that have no script; None: it is well."""

    def __init__(self, clock: FakeClock, *script: Exception | None, then: Exception | None = None) -> None:
        self._clock = clock
        self._script = deque(script)
        self.then = then
        self.calls: list[tuple[int, Receipt, str, str | None]] = []

    async def __call__(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        self.calls.append((self._clock.monotonic(), receipt, key, tenant_id))
        answer = self._script.popleft() if self._script else self.then
        if answer is not None:
            raise answer

    @property
    def seconds(self) -> list[float]:
        """When the calls came, since the first."""
        return [(at - self.calls[0][0]) / 1000 for at, *_ in self.calls]

    @property
    def leases(self) -> list[tuple[str, str]]:
        return [(each.lease_id, each.status) for _, each, _, _ in self.calls]


class Wired:
    """A real transport under a fake clock: time stands still while a call is on the wire."""

    def __init__(self, lab: Lab, transport: Transport) -> None:
        self._clock = lab.clock
        self._transport = transport
        self.at: list[int] = []

    async def __call__(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        self._clock.enter()
        self.at.append(self._clock.monotonic())
        try:
            await self._transport.deliver(receipt, key, tenant_id)
        finally:
            self._clock.leave()


@contextlib.asynccontextmanager
async def opened(lab: Lab, target: Any, **options: Any) -> AsyncIterator[ReceiptClient]:
    """A client on the lab's store; time passes only when the lab lets it."""
    store = options.pop("store", None) or Shared(lab.store, lab.clock)
    client = ReceiptClient(None, store, transport=target, clock=lab.clock, log=False, actor="lab", **options)
    await lab.drive(client.open())
    try:
        yield client
    finally:
        await lab.drive(client.close())
