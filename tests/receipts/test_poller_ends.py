"""A poller that stops, a store that fails, handlers in threads, and what a handler returns."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from redrive.app.internals import store_of
from redrive.engine import orders
from redrive.engine.poller import CANCEL_GRACE
from redrive.errors import ReceiptUnreachable
from redrive.receipts import Receipt
from redrive.receipts.jobs import Job
from redrive.receipts.poller import WorkPoller
from redrive.testing.faults import Fault
from tests.receipts.shop import SECOND, Shop, code_of, giving, shop

__all__ = ["shop"]


# --- the end ---


async def test_a_drain_lets_jobs_finish_and_keeps_their_leases(shop: Shop) -> None:
    async def handle(job: Job) -> str:
        await shop.passing(200)
        return "finished"

    shop.add("a", "b")
    poller = shop.start(handle, heartbeat_interval=60, drain_timeout=300)
    await shop.passing(30)
    await poller.stop()
    assert (await shop.end_of("a")).summary == "finished"
    assert shop.beats == [60, 120, 180]
    assert shop.time < 202
    assert [job["payload"] for job in shop.jobs] == ["b"]  # nothing new is asked for


async def test_jobs_that_outlive_the_drain_are_cancelled_at_once_and_durable(shop: Shop) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(3600)

    shop.add(*"abc")
    shop.refusing = ReceiptUnreachable("down")
    poller = shop.start(handle, max_concurrent_jobs=3, job_timeout="2h", drain_timeout=20)
    await shop.passing(10)
    await poller.stop()
    assert 30 <= shop.time < 31
    assert poller.active == {}
    kept = (await shop.client.app.find("queue:receipts state:ready payload.receipt.status=failed")).items
    assert len(kept) == 3
    shop.refusing = None
    for job in "abc":
        failed = await shop.end_of(job)
        assert failed.error_metadata == {
            "code": "SHUTDOWN_CANCELLED",
            "message": "the worker shut down",
            "retryable": True,
        }


@pytest.mark.parametrize(("again", "ended"), [(0, 15), (2, 17), (None, 310), (600, 615)])
async def test_a_second_stop_says_how_long_from_then_on(shop: Shop, again: int | None, ended: int) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(3600)

    shop.add("a")
    poller = shop.start(handle, job_timeout="2h", drain_timeout=300)
    await shop.passing(10)
    first = asyncio.create_task(poller.stop())
    await shop.passing(5)
    await poller.stop(drain_timeout=again)
    await first
    assert ended <= shop.time < ended + 1
    assert code_of(await shop.end_of("a")) == "SHUTDOWN_CANCELLED"


async def test_a_handler_that_does_not_listen_does_not_hold_up_the_end(shop: Shop) -> None:
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        try:
            await enough.wait()
        except asyncio.CancelledError:
            await enough.wait()

    shop.add("a")
    poller = shop.start(handle, job_timeout="1h")
    await shop.passing(10)
    await poller.stop(drain_timeout=0)
    assert shop.time <= 10 + CANCEL_GRACE / SECOND + 1
    assert code_of(await shop.end_of("a")) == "SHUTDOWN_CANCELLED"
    enough.set()


async def test_a_run_that_is_cancelled_leaves_receipts_too(shop: Shop) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(3600)

    shop.add("a")
    poller = shop.start(handle)
    await shop.until(lambda: poller.active)
    shop.run_of(poller).cancel()
    assert code_of(await shop.end_of("a")) == "SHUTDOWN_CANCELLED"


async def test_a_handler_may_stop_the_poller(shop: Shop) -> None:
    poller: WorkPoller

    async def handle(job: Job) -> str:
        await poller.stop()
        return "the last one"

    shop.add("a", "b")
    poller = shop.start(handle)
    await shop.run_of(poller)
    assert (await shop.end_of("a")).summary == "the last one"
    assert len(shop.jobs) == 1


# --- a store that fails, threads, results ---


async def test_a_result_is_not_given_up_when_the_store_fails(shop: Shop) -> None:
    async def handle(job: Job) -> str:
        shop.store.fail("put", Fault.UNAVAILABLE, times=8)
        return "hard won"

    shop.add("a")
    poller = shop.start(handle)
    await shop.passing(2)
    assert list(poller.active) == ["lease-a"]
    assert (await shop.end_of("a")).summary == "hard won"


async def test_a_thread_that_listens_can_still_finish(shop: Shop) -> None:
    began, pause = threading.Event(), threading.Event()

    def handle(job: Job) -> str:
        began.set()
        while not job.cancel_requested:
            pause.wait(0.001)
        return f"as far as it went: {job.cancel_requested}"

    shop.add("a")
    poller = shop.start(handle)
    with shop.clock.driven():  # fake time would run away from a thread
        assert await asyncio.to_thread(began.wait, 20)
        await poller.stop(drain_timeout=0)
    assert (await shop.end_of("a")).summary == "as far as it went: SHUTDOWN_CANCELLED"


async def test_a_thread_that_is_not_waited_for_is_told_and_keeps_its_place(shop: Shop) -> None:
    began, let_go, next_began = threading.Event(), threading.Event(), threading.Event()
    jobs: list[Job] = []

    def handle(job: Job) -> str:
        jobs.append(job)
        if job.payload == "slow":
            began.set()
            let_go.wait()
        else:
            next_began.set()
        return threading.current_thread().name

    async def real(event: threading.Event) -> None:
        """Fake time would run away from a thread."""
        with shop.clock.driven():
            assert await asyncio.to_thread(event.wait, 20)

    shop.add("slow", "next")
    shop.start(handle, job_timeout=10)
    try:
        await real(began)
        assert code_of(await shop.end_of("slow")) == "JOB_TIMEOUT"
        assert [job.cancel_requested for job in jobs] == ["JOB_TIMEOUT"]
    finally:
        let_go.set()
    await real(next_began)
    assert "next" in [job.payload for job in jobs]


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (None, {"summary": ""}),
        ("x" * 2000, {"summary": "x" * 999 + "…"}),
        ({"summary": "s", "artifact_pointers": ["s3://b/k"]}, {"summary": "s", "artifact_pointers": ["s3://b/k"]}),
        ({"pages": 3}, {"artifact_pointers": [{"result": {"pages": 3}}]}),
        ([1, 2], {"artifact_pointers": [{"result": [1, 2]}]}),
        (object(), {"status": "failed"}),
        ({"summary": 5}, {"status": "failed"}),
        (
            Receipt(lease_id="lease-a", task_id="task-a", worker_id="me", status="complete", summary="mine"),
            {"summary": "mine", "worker_id": "me"},
        ),
        (Receipt(lease_id="other", task_id="task-a", worker_id="me", status="complete"), {"status": "failed"}),
        (Receipt(lease_id="lease-a", task_id="task-a", worker_id="me", status="running"), {"status": "failed"}),
    ],
)
async def test_what_a_handler_returns_is_in_the_receipt(shop: Shop, value: object, fields: dict[str, Any]) -> None:
    shop.add("a")
    shop.start(giving(value))
    final = await shop.end_of("a")
    assert {name: getattr(final, name) for name in fields} == fields


@pytest.mark.parametrize(("word", "status"), [("drain", "complete"), ("stop", "failed")])
async def test_an_operator_sees_a_poller_and_ends_it(shop: Shop, word: orders.Word, status: str) -> None:
    """`redrive worker list` shows it with its jobs; a drain lets them finish, a stop does not."""

    async def work(_: Job) -> str:
        await shop.passing(60)
        return "done"

    shop.add("a")
    poller = shop.start(work, max_concurrent_jobs=3)
    await shop.until(lambda: poller.active)
    await shop.passing(10)
    store = store_of(shop.client.app)  # as an operator sees it
    (beat,) = [each for each in await store.workers() if each.worker.startswith("w-")]
    assert (beat.alive, beat.facts.queues, beat.facts.running, beat.facts.slots) == (True, (), 1, 3)
    await orders.give(store, [beat.worker], orders.Order(word, "ann", "new release", shop.clock.now()))
    await shop.until(lambda: shop.run_of(poller).done())
    assert [receipt.status for receipt in shop.final()] == [status]
    (beat,) = [each for each in await store.workers() if each.worker.startswith("w-")]
    assert beat.facts.stopped
