"""A poller claims, beats and works, and leaves a receipt of every job, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import Retry
from redrive.engine.poller import CANCEL_GRACE
from redrive.errors import ConfigError, ReceiptRefused, ReceiptSuperseded, ReceiptUnreachable
from redrive.receipts import Receipt, ReceiptClient, blocking
from redrive.receipts.jobs import Job
from redrive.receipts.model import item_id
from redrive.receipts.poller import WorkPoller
from tests.receipts.shop import SECOND, Shop, code_of, giving, shop
from tests.support.broker import Broker, status
from tests.support.stores import EACH, StoreUrl

__all__ = ["shop"]

RESULT = {"lease_id": "l", "task_id": "t", "worker_id": "w", "status": "complete"}


# --- the life of a job ---


async def test_a_job_has_a_running_and_a_final_receipt(shop: Shop) -> None:
    async def handle(job: Job) -> str:
        await shop.passing(1)
        return f"{job.payload} is done"

    shop.add("a")
    poller = shop.start(handle)
    final = await shop.end_of("a")
    assert [receipt.status for receipt in shop.receipts] == ["running", "complete"]
    assert (final.lease_id, final.worker_id, final.summary) == ("lease-a", "w", "a is done")
    assert poller.active == {}


@pytest.mark.parametrize("refusing", [None, ReceiptRefused("no"), ReceiptUnreachable("nobody there")])
async def test_r11_a_job_is_forgotten_when_its_receipt_is_durable(shop: Shop, refusing: Exception | None) -> None:
    """Whether it is delivered, or a dead letter in the end."""
    release = asyncio.Event()

    async def handle(job: Job) -> None:
        await release.wait()

    shop.add("a")
    shop.refusing = refusing
    poller = shop.start(handle)
    await shop.until(lambda: poller.active)
    assert list(poller.active) == ["lease-a"]
    release.set()
    await shop.until(lambda: not poller.active, most=1)
    end = "complete", "true" if refusing is None else "false"
    await shop.until(lambda: shop.client.metrics.receipts[end])
    assert poller.active == {}


@pytest.mark.parametrize("kind", EACH)
async def test_r11_on_every_store(kind: str, store_url: StoreUrl) -> None:
    """In real time: the job is forgotten, and its receipt is a letter."""
    ended = asyncio.Event()

    async def poll(_most: int) -> list[dict[str, str]]:
        return [] if poller.active or ended.is_set() else [{"lease_id": "l", "task_id": "t"}]

    async def handle(_job: Job) -> str:
        ended.set()
        return "done"

    async def deliver(receipt: Receipt, _key: str, _tenant: str | None) -> None:
        if receipt.final:
            raise ReceiptRefused("no")

    async with ReceiptClient(None, store_url(kind), transport=deliver, log=False) as client:
        poller = WorkPoller(client, handle, poll=poll)
        run = asyncio.create_task(poller.run())
        await ended.wait()
        await poller.stop()
        await run
        assert poller.active == {}
        assert not await client.wait(item_id("receipts", None, Receipt.of(RESULT)))
        (dead,) = await client.dead_letters.get_all()
    assert (dead.receipt.lease_id, dead.receipt.status, dead.receipt.summary) == ("l", "complete", "done")


async def test_no_more_jobs_than_places_and_a_place_that_is_free_is_taken_at_once(shop: Shop) -> None:
    running: set[str] = set()
    most = 0

    async def handle(job: Job) -> None:
        nonlocal most
        running.add(job.payload)
        most = max(most, len(running))
        await shop.passing(10)
        running.discard(job.payload)

    shop.add(*"abcdef")
    shop.start(handle, max_concurrent_jobs=2, polling_interval="1h")
    await shop.until(lambda: len(shop.final()) == 6)
    assert most == 2
    assert 30 <= shop.time < 35


async def test_it_asks_again_after_its_interval(shop: Shop) -> None:
    shop.start(giving(None), polling_interval=5)
    await shop.until(lambda: len(shop.asked) == 4)
    assert [each - shop.asked[0] for each in shop.asked] == [0, 5_000, 10_000, 15_000]


async def test_a_broker_that_is_silent_is_asked_less_often_and_then_as_usual(shop: Shop) -> None:
    shop.silent = ReceiptUnreachable("nobody there")
    shop.start(giving(None), polling_interval=5)
    await shop.until(lambda: len(shop.asked) == 5)
    assert [each - shop.asked[0] for each in shop.asked] == [0, 10_000, 30_000, 70_000, 130_000]
    shop.silent = None
    shop.add("a")
    await shop.end_of("a")


async def test_what_is_no_job_does_not_stop_the_others(shop: Shop) -> None:
    shop.jobs.append({"payload": "whose?"})
    shop.add("a")
    shop.start(giving("fine"), max_concurrent_jobs=2)
    assert (await shop.end_of("a")).summary == "fine"


# --- how jobs fail ---


async def test_a_handler_that_raises_is_a_handler_error(shop: Shop) -> None:
    async def handle(job: Job) -> None:
        if job.payload == "again":
            raise Retry("not today")
        raise ValueError("no such page; password=hunter2")

    shop.add("a", "again")
    shop.start(handle, max_concurrent_jobs=2)
    failed = await shop.end_of("a")
    assert code_of(failed) == "HANDLER_ERROR"
    assert failed.summary == "ValueError: no such page; password=[redacted]"
    assert failed.error_metadata is not None
    assert failed.error_metadata["retryable"] is False
    again = await shop.end_of("again")
    assert again.error_metadata == {"code": "HANDLER_ERROR", "message": "Retry: not today", "retryable": True}


async def test_a_job_that_takes_too_long_is_cancelled(shop: Shop) -> None:
    cancelled = []

    async def handle(job: Job) -> None:
        try:
            await shop.passing(3600)
        except asyncio.CancelledError:
            cancelled.append(job.cancel_requested)
            raise

    shop.add("a")
    shop.start(handle, job_timeout="5m")
    failed = await shop.end_of("a")
    assert code_of(failed) == "JOB_TIMEOUT"
    assert cancelled == ["JOB_TIMEOUT"]
    assert 300 <= shop.time < 301


async def test_a_handler_that_does_not_listen_gets_its_receipt_all_the_same(shop: Shop) -> None:
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        while not enough.is_set():
            try:
                await shop.passing(3600)
            except asyncio.CancelledError:
                await enough.wait()

    shop.add("a", "b")
    poller = shop.start(handle, job_timeout=10)
    assert code_of(await shop.end_of("a")) == "JOB_TIMEOUT"
    assert 10 + CANCEL_GRACE / SECOND <= shop.time < 17
    assert poller.active == {}
    assert [job["payload"] for job in shop.jobs] == ["b"]  # its place is taken until it ends
    enough.set()
    await shop.end_of("b")


async def test_a_lease_that_is_lost_ends_the_job(shop: Shop) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(3600)

    shop.lost = ReceiptSuperseded("the lease is over", code="LEASE_INVALID_OR_EXPIRED")
    shop.add("a")
    shop.start(handle, heartbeat_interval=60, job_timeout="2h")
    assert code_of(await shop.end_of("a")) == "LEASE_LOST"
    assert shop.beats == [60]


async def test_a_lease_that_cannot_be_made_longer_counts_until_it_ends(shop: Shop) -> None:
    async def handle(job: Job) -> str:
        await shop.passing(100)
        return "in time"

    shop.lost = ReceiptSuperseded("ten times is enough", code="LEASE_RENEWAL_LIMIT_EXCEEDED")
    shop.add("a")
    shop.start(handle, heartbeat_interval=60)
    assert (await shop.end_of("a")).summary == "in time"


# --- heartbeats ---


async def test_heartbeats_go_on_until_the_receipt_has_arrived(shop: Shop) -> None:
    """The target refuses connections when the job ends; the lease is kept through the retries."""

    async def handle(job: Job) -> None:
        await shop.passing(25)
        shop.refusing = ReceiptUnreachable("down")

    shop.add("a")
    shop.start(handle, heartbeat_interval=10)
    await shop.until(lambda: shop.time >= 30)
    shop.refusing = None
    await shop.end_of("a")
    assert shop.beats == [10, 20, 30]
    await shop.passing(60)
    assert shop.beats == [10, 20, 30]


async def test_a_heartbeat_that_fails_comes_again_soon(shop: Shop) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(100)

    shop.lost = ReceiptUnreachable("down")
    shop.add("a")
    shop.start(handle, heartbeat_interval=60)
    await shop.until(lambda: len(shop.beats) == 2)
    shop.lost = None
    await shop.end_of("a")
    assert shop.beats == [60, 75, 90]


# --- over the wire ---


async def test_jobs_of_a_real_broker(broker: Broker) -> None:
    """Through MCP tools, with a hiccup when work is asked for and one when the end is told."""
    tasks = [broker.add_task({"n": number}) for number in range(3)]
    broker.script(status(503))

    async def handle(job: Job) -> str:
        if job.payload["n"] == 1:
            raise ValueError("one is odd")
        return f"did {job.payload['n']}"

    client = ReceiptClient(broker.url, "memory:", tenant_id="acme", backoff_base=0.01, log=False)
    async with client:
        poller = WorkPoller(client, handle, polling_interval=0.01, max_concurrent_jobs=2, lease_ttl=60)
        run = asyncio.create_task(poller.run())
        await broker.called(2, tool="complete")
        await broker.called(1, tool="fail")
        await poller.stop()
        await run
    assert [task.state for task in tasks] == ["succeeded", "failed", "succeeded"]
    asked = broker.of(tool="lease_next")[1].arguments
    assert asked == {"tenant_id": "acme", "worker_id": poller.worker_id, "max_tasks": 2, "lease_ttl_seconds": 60}


async def test_a_job_whose_lease_ran_out_is_done_by_whoever_has_it_next(broker: Broker) -> None:
    """The broker gave it out again; what the first one had to say is superseded."""
    task = broker.add_task()
    cancelled: list[str] = []

    async def handle(job: Job) -> str:
        if not cancelled:
            await broker.called(1, tool="renew_lease")
            broker.expire(task.id)
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(job.cancel_requested)
        return "the second time"

    async with ReceiptClient(broker.url, "memory:", backoff_base=0.01, log=False) as client:
        poller = WorkPoller(client, handle, polling_interval=0.01, heartbeat_interval=0.01)
        run = asyncio.create_task(poller.run())
        await broker.called(1, tool="complete")
        await poller.stop()
        await run
        await client.wait(item_id("receipts", None, Receipt.of(RESULT | {"lease_id": "lease-1"})))
        assert client.metrics.superseded["failed"] == 1
    assert cancelled == ["LEASE_LOST"]
    assert (task.leases, task.state) == (2, "succeeded")
    assert task.renewals


# --- bad input ---


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("handler", {"handler": "no function"}),
        ("max_concurrent_jobs", {"max_concurrent_jobs": 0}),
        ("polling_interval", {"polling_interval": 0}),
        ("heartbeat_interval", {"heartbeat_interval": "often"}),
        ("job_timeout", {"job_timeout": -1}),
        ("drain_timeout", {"drain_timeout": "never"}),
        ("lease_ttl", {"lease_ttl": 0}),
        ("worker_id", {"worker_id": ""}),
        ("worker_id", {"worker_id": "esc\x1b"}),
        ("worker_id", {"worker_id": 5}),
        ("poll", {"poll": 5}),
        ("renew", {"renew": ""}),
        ("capabilities", {"capabilities": "ocr"}),
        ("capabilities", {"capabilities": ["ocr", ""]}),
        ("accept_types", {"accept_types": 5}),
    ],
)
@pytest.mark.parametrize("kind", [WorkPoller, blocking.WorkPoller])
def test_bad_options_are_named(kind: Any, field: str, options: dict[str, Any]) -> None:
    made = blocking.ReceiptClient if kind is blocking.WorkPoller else ReceiptClient
    with pytest.raises(ConfigError) as caught:
        kind(made("http://127.0.0.1:1", "memory:"), **{"handler": print, **options})
    assert caught.value.field == field
    assert caught.value.hint


@pytest.mark.parametrize("field", ["poll", "renew"])
def test_a_plain_function_is_for_the_blocking_poller(field: str) -> None:
    options: dict[str, Any] = {field: print}
    with pytest.raises(ConfigError, match=f"^{field}: .*async def"):
        WorkPoller(ReceiptClient("http://127.0.0.1:1", "memory:"), print, **options)
    blocking.WorkPoller(blocking.ReceiptClient("http://127.0.0.1:1", "memory:"), print, **options)


async def test_it_runs_once_at_a_time(shop: Shop) -> None:
    poller = shop.start(giving(None))
    await shop.until(lambda: shop.asked)
    with pytest.raises(ConfigError, match="runs already"):
        await poller.run()
