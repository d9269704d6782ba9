"""The poller with a source that has nothing to do with receipts; what doors pin of it is in tests/receipts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from redrive.engine.caller import Called
from redrive.engine.poller import JOB_TIMEOUT, LEASE_LOST, SHUTDOWN_CANCELLED, Poller, Times
from redrive.errors import ConfigError, StoreUnavailable
from redrive.events import Events
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock

TIMES = Times(interval=1_000, renewal=10_000, timeout=60_000, drain=30_000)


@dataclass(eq=False)
class Task:
    lease_id: str
    seconds: float = 0
    cancel_requested: str = ""


@dataclass
class Queue:
    """A source whose tasks take a while, or fail where they take less than none."""

    clock: FakeClock
    tasks: list[Task] = field(default_factory=list)
    ends: list[tuple[str, Any, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    lost: bool = False
    failures: int = 0
    undelivered: asyncio.Event | None = None

    async def poll(self, free: int) -> list[Task]:
        given, self.tasks = self.tasks[:free], self.tasks[free:]
        return given

    async def renew(self, job: Task) -> None:
        self.renewed.append(job.lease_id)
        if self.lost:
            raise LookupError("gone")

    def log(self, level: int, text: str, trace: BaseException | None = None) -> None:
        if level >= logging.WARNING:
            self.lines.append(text)

    def read(self, answer: Any) -> list[Task]:
        return list(answer or ())

    def late(self, answer: Any) -> None:
        raise AssertionError(answer)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, LookupError)

    async def begin(self, job: Task) -> None:
        return

    async def ended(self, job: Task, called: Called | None, why: str) -> Callable[[], Awaitable[object]]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("down")
        self.ends.append((job.lease_id, called if called is None else called.error or called.value, why))
        return self.delivery

    async def delivery(self) -> None:
        if self.undelivered is not None:
            await self.undelivered.wait()

    async def handle(self, job: Task) -> str:
        if job.seconds < 0:
            raise ValueError(job.lease_id)
        await self.clock.sleep(round(job.seconds * 1000))
        return "done"


@pytest.fixture
def queue() -> Queue:
    return Queue(FakeClock(autoadvance=True))


def poller_of(queue: Queue, slots: int = 2) -> Poller[Task]:
    store, clock = MemoryStore(queue.clock), queue.clock
    return Poller("w", queue.handle, queue, slots=slots, times=TIMES, store=store, events=Events(), clock=clock)


async def passing(queue: Queue, seconds: float) -> None:
    await queue.clock.sleep(round(seconds * 1000))


async def test_a_job_ends_once_with_what_its_handler_did(queue: Queue) -> None:
    queue.tasks = [Task("ok"), Task("bad", -1), Task("slow", 100)]
    poller = poller_of(queue)
    run = asyncio.create_task(poller.run())
    await passing(queue, 70)
    with pytest.raises(ConfigError, match="runs already"):
        await poller.run()
    await poller.stop()
    await run
    (bad, ok, slow) = queue.ends
    assert ok == ("ok", "done", "")
    assert (bad[0], repr(bad[1]), bad[2]) == ("bad", "ValueError('bad')", "")
    assert (slow[0], slow[2]) == ("slow", JOB_TIMEOUT)
    assert queue.renewed == ["slow"] * 6
    assert queue.lines == ["the handler of bad failed: ValueError: bad"]
    assert poller.active == {}


async def test_a_lost_lease_cancels_its_job_and_a_drain_those_that_outlive_it(queue: Queue) -> None:
    queue.tasks, queue.lost = [Task("lost", 50)], True
    poller = poller_of(queue)
    run = asyncio.create_task(poller.run())
    await passing(queue, 12)
    queue.tasks, queue.lost = [Task("late", 50), Task("soon", 10)], False
    await passing(queue, 2)
    await poller.stop(20_000)
    await run
    assert [(lease, why) for lease, _, why in queue.ends] == [
        ("lost", LEASE_LOST),
        ("soon", ""),
        ("late", SHUTDOWN_CANCELLED),
    ]


async def test_an_end_is_tried_until_it_is_durable_and_its_lease_is_extended_until_it_was_delivered(
    queue: Queue,
) -> None:
    queue.tasks, queue.failures, queue.undelivered = [Task("a")], 3, asyncio.Event()
    poller = poller_of(queue)
    run = asyncio.create_task(poller.run())
    await passing(queue, 1)
    assert list(poller.active) == ["a"]
    await passing(queue, 24)
    assert (queue.ends, poller.active) == ([("a", "done", "")], {})
    assert queue.renewed == ["a", "a"]
    queue.undelivered.set()
    await passing(queue, 20)
    assert queue.renewed == ["a", "a"]
    assert queue.lines == ["the end of a is not durable yet: down"] * 3
    await poller.stop()
    await run
