"""A poller with a target that gives out jobs, prolongs leases and takes receipts: in this process, on fake time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from redrive.receipts import Receipt, ReceiptClient
from redrive.receipts.jobs import Job
from redrive.receipts.poller import WorkPoller
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import FaultyStore

SECOND = 1000
RESULT = {"lease_id": "l", "task_id": "t", "worker_id": "w", "status": "complete"}


class Shop:
    """A poller with a target that gives out jobs, prolongs leases and takes receipts: in this process, on fake time."""

    def __init__(self) -> None:
        self.clock = FakeClock(autoadvance=True)
        self.store = FaultyStore(MemoryStore(self.clock))
        self.client = ReceiptClient(None, self.store, transport=self._deliver, clock=self.clock, log=False)
        self.began = self.clock.now()
        self.jobs: list[dict[str, Any]] = []
        self.asked: list[int] = []
        self.beats: list[int] = []
        self.receipts: list[Receipt] = []
        self.refusing: Exception | None = None
        self.lost: Exception | None = None
        self.silent: Exception | None = None
        self._pollers: list[WorkPoller] = []
        self._runs: list[asyncio.Task[None]] = []

    @property
    def time(self) -> float:
        """Seconds since the beginning."""
        return (self.clock.now() - self.began) / SECOND

    def add(self, *names: str) -> None:
        self.jobs += [{"lease_id": f"lease-{name}", "task_id": f"task-{name}", "payload": name} for name in names]

    def start(self, handler: Callable[[Job], Any], **options: Any) -> WorkPoller:
        given: dict[str, Any] = {"poll": self._poll, "renew": self._renew, "worker_id": "w"} | options
        poller = WorkPoller(self.client, handler, **given)
        self._pollers.append(poller)
        self._runs.append(asyncio.create_task(poller.run()))
        return poller

    def run_of(self, poller: WorkPoller) -> asyncio.Task[None]:
        return self._runs[self._pollers.index(poller)]

    async def passing(self, seconds: float) -> None:
        await self.clock.sleep(round(seconds * SECOND))

    async def until(self, met: Callable[[], object], *, most: float = 600) -> None:
        """Let time pass until it is so."""
        end = self.time + most
        while not met():
            assert self.time < end, "it did not happen"
            await self.clock.sleep(100)

    def final(self) -> list[Receipt]:
        return [receipt for receipt in self.receipts if receipt.final]

    async def end_of(self, job: str) -> Receipt:
        await self.until(lambda: any(receipt.task_id == f"task-{job}" for receipt in self.final()))
        (receipt,) = [receipt for receipt in self.final() if receipt.task_id == f"task-{job}"]
        return receipt

    async def close(self) -> None:
        for poller, run in zip(self._pollers, self._runs, strict=True):
            await poller.stop(drain_timeout=0)
            await asyncio.wait([run])

    async def _poll(self, most: int) -> list[dict[str, Any]]:
        self.asked.append(self.clock.now())
        if self.silent is not None:
            raise self.silent
        given, self.jobs = self.jobs[:most], self.jobs[most:]
        return given

    async def _renew(self, job: Job) -> None:
        self.beats.append(round(self.time))
        if self.lost is not None:
            raise self.lost

    async def _deliver(self, receipt: Receipt, _key: str, _tenant: str | None) -> None:
        if self.refusing is not None:
            raise self.refusing
        self.receipts.append(receipt)


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    async with made.client:
        yield made
        await made.close()


def giving(value: object) -> Callable[[Job], Any]:
    async def handle(job: Job) -> object:
        return value

    return handle


def code_of(receipt: Receipt) -> str:
    assert receipt.status == "failed"
    assert receipt.error_metadata is not None
    return str(receipt.error_metadata["code"])
