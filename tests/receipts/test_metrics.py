"""The numbers that Prometheus sees: of this process's tries, and of the store's letters."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from redrive.errors import ConfigError, MissingExtra, ReceiptRefused, ReceiptServerError, ReceiptSuperseded
from redrive.receipts import Receipt, ReceiptClient
from redrive.receipts.dead_letters import DeadLetterQueue
from redrive.receipts.metrics import ReceiptMetrics, alert_rules
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import Fault, FaultyStore
from tests.support.stores import EACH, StoreUrl


class Target:
    """Raises what it is told to, one after the other, and then takes everything."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)

    async def __call__(self, receipt: Receipt, key: str, tenant_id: str | None) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


def receipt(lease: str, status: str = "complete") -> dict[str, Any]:
    return {"lease_id": lease, "task_id": "t", "worker_id": "w", "status": status}


def client_of(store: Any, target: Target, **options: Any) -> ReceiptClient:
    # What is written by a thread or a server takes real time: a clock that goes by itself would not wait for it.
    clock: dict[str, Any] = {"clock": FakeClock(autoadvance=True)} if store == "memory:" else {}
    return ReceiptClient(None, store, transport=target, log=False, **clock, **options)


def down() -> ReceiptServerError:
    return ReceiptServerError("out of order")


async def test_r15_receipts_retries_and_the_size_are_counted() -> None:
    target = Target(down(), down(), None, *[down() for _ in range(5)])
    async with client_of("memory:", target) as client:
        assert await client.send_receipt(receipt("one"))
        assert not await client.send_receipt(receipt("two"))
        metrics = client.metrics
        assert metrics.receipts == {("complete", "true"): 1, ("complete", "false"): 1}
        assert metrics.retries == 2 + 4
        assert metrics.dead_letters == 1


async def test_r15_the_names_are_those_of_the_seed() -> None:
    target = Target(down(), None, ReceiptRefused("no"), ReceiptSuperseded("late"))
    async with client_of("memory:", target, metrics_prefix="cognigate") as client:
        registry = CollectorRegistry()
        client.metrics.register(registry)
        for lease, status in (("one", "complete"), ("two", "failed"), ("three", "running")):
            await client.send_receipt(receipt(lease, status))
        told = await asyncio.to_thread(generate_latest, registry)
    lines = [line for line in told.decode().splitlines() if not line.startswith("#") and "_created" not in line]
    assert sorted(lines) == [
        "cognigate_dead_letter_queue_size 1.0",
        "cognigate_receipt_retries_total 1.0",
        "cognigate_receipt_store_errors_total 0.0",
        'cognigate_receipts_superseded_total{status="running"} 1.0',
        'cognigate_receipts_total{status="complete",success="true"} 1.0',
        'cognigate_receipts_total{status="failed",success="false"} 1.0',
    ]


@pytest.mark.parametrize("kind", [kind for kind in EACH if kind != "memory"])
async def test_r18_the_size_is_right_at_once_after_a_restart(kind: str, same_url: StoreUrl) -> None:
    def client() -> ReceiptClient:
        return ReceiptClient(None, same_url(kind), transport=Target(ReceiptRefused("no")), log=False)

    async with client() as first:
        assert first.metrics.dead_letters == 0
        await first.send_receipt(receipt("a"))
    async with client() as second:
        assert second.metrics.dead_letters == 1
        await second.send_receipt(receipt("b"))
        assert second.metrics.dead_letters == 2


async def test_a_scrape_sees_what_others_did(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/receipts.db"
    registry = CollectorRegistry()
    async with client_of(url, Target()) as client, DeadLetterQueue(url) as other:
        client.metrics.register(registry)

        def size() -> float | None:
            return registry.get_sample_value("redrive_dead_letter_queue_size")

        await other.store(receipt("a"))
        assert client.metrics.dead_letters == 0
        assert await asyncio.to_thread(size) == 1
        await other.store(receipt("b"))
        assert size() == 1  # in the loop itself it cannot wait for the store, and asks for the next time
        assert await client.metrics.refresh() == 2


async def test_the_size_follows_what_operators_do_here() -> None:
    async with client_of("memory:", Target(ReceiptRefused("no"))) as client:
        await client.send_receipt(receipt("a"))
        assert client.metrics.dead_letters == 1
        await client.app.letters.discard("queue:receipts", reason="not needed")
        await client.clock.sleep(1)
        assert client.metrics.dead_letters == 0


async def test_a_letter_that_dies_while_the_store_is_asked_is_counted_once() -> None:
    clock = FakeClock(autoadvance=True)
    store = FaultyStore(MemoryStore(clock))
    client = ReceiptClient(None, store, transport=Target(ReceiptRefused("no")), clock=clock, log=False)
    async with client:
        hold = store.hold("tally", "after")
        asking = asyncio.create_task(client.metrics.refresh())
        await hold.reached.wait()
        await client.send_receipt(receipt("a"))
        hold.release()
        assert await asking == 1
        assert client.metrics.dead_letters == 1


async def test_a_store_that_fails_is_counted_and_does_not_fail_a_scrape() -> None:
    clock = FakeClock(autoadvance=True)
    store = FaultyStore(MemoryStore(clock))
    async with ReceiptClient(None, store, transport=Target(), clock=clock, log=False) as client:
        store.fail("tally", Fault.UNAVAILABLE, times=1)
        registry = CollectorRegistry()
        client.metrics.register(registry)
        told = await asyncio.to_thread(registry.get_sample_value, "redrive_dead_letter_queue_size")
        assert told == 0
        assert client.metrics.store_errors == 1


async def test_the_numbers_stay_when_the_client_is_closed() -> None:
    registry = CollectorRegistry()
    async with client_of("memory:", Target(ReceiptRefused("no"))) as client:
        client.metrics.register(registry)
        await client.send_receipt(receipt("a"))
    assert registry.get_sample_value("redrive_dead_letter_queue_size") == 1


# --- several clients, one registry ---


SIZE = "redrive_dead_letter_queue_size"
DELIVERED = ("redrive_receipts_total", {"status": "complete", "success": "true"})


def refused() -> Target:
    return Target(ReceiptRefused("no"))


async def test_clients_that_share_a_registry_are_added_up(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    url = f"sqlite:///{tmp_path}/receipts.db"
    async with (
        client_of(url, Target()) as first,
        client_of(url, refused()) as second,
        client_of(url, refused(), queue="elsewhere") as third,
        client_of(f"sqlite:///{tmp_path}/other.db", refused()) as fourth,
    ):
        for client in (first, second, third, fourth, fourth):
            client.metrics.register(registry)
        for lease, client in enumerate((first, second, third, fourth)):
            await client.send_receipt(receipt(f"lease-{lease}"))
            await client.send_receipt(receipt(f"again-{lease}"))
        told = await asyncio.to_thread(lambda: [registry.get_sample_value(*DELIVERED), registry.get_sample_value(SIZE)])
        assert told == [5, 3], "the letter that two of them see is one"


async def test_a_client_that_ended_stays_in_the_sums_and_its_queue_is_seen_by_the_next(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    url = f"sqlite:///{tmp_path}/receipts.db"
    for lease in ("a", "b"):
        async with client_of(url, refused()) as client:
            client.metrics.register(registry)
            await client.send_receipt(receipt(lease))
            await client.send_receipt(receipt(f"good {lease}"))
    assert registry.get_sample_value(*DELIVERED) == 2
    assert registry.get_sample_value(SIZE) == 2
    async with client_of(url, Target()) as client:
        client.metrics.register(registry)
        await client.recover()
        assert await asyncio.to_thread(registry.get_sample_value, SIZE) == 0


async def test_whoever_knows_the_size_last_is_believed(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    url = f"sqlite:///{tmp_path}/receipts.db"
    async with client_of(url, Target(), work=False) as first, client_of(url, refused()) as second:
        for client in (second, first):
            client.metrics.register(registry)
        await second.send_receipt(receipt("a"))
        assert registry.get_sample_value(SIZE) == 1  # in the loop, where no store can be asked


async def test_prefixes_are_told_apart_and_numbers_can_be_taken_out() -> None:
    registry = CollectorRegistry()
    async with client_of("memory:", Target()) as one, client_of("memory:", Target(), metrics_prefix="other") as other:
        for client in (one, other):
            client.metrics.register(registry)
            await client.send_receipt(receipt("a"))
        assert registry.get_sample_value(*DELIVERED) == 1
        one.metrics.unregister(registry)
        one.metrics.unregister(registry)
        assert registry.get_sample_value(SIZE) is None
        assert registry.get_sample_value("other_dead_letter_queue_size") == 0
        one.metrics.register(registry)
        assert registry.get_sample_value(*DELIVERED) == 1


def test_names_that_somebody_else_has_are_told() -> None:
    registry = CollectorRegistry()
    Gauge(SIZE, "another one", registry=registry)
    with pytest.raises(ConfigError, match="metrics_prefix"):
        ReceiptMetrics().register(registry)


def test_the_alert_is_that_of_the_seed() -> None:
    text = alert_rules("cognigate")
    assert "expr: cognigate_dead_letter_queue_size > 10\n" in text
    assert "for: 15m\n" in text


@pytest.mark.parametrize("prefix", ["", "with-dash", "9lives", None, "ends\n"])
def test_a_prefix_that_cannot_be_a_name_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigError, match="metrics_prefix"):
        ReceiptMetrics(prefix)


def test_without_prometheus_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"redrive\[metrics\]"):
        ReceiptMetrics().register()
