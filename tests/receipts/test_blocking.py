"""The same client without `await`: it cannot drift from the async one, and lives in the loop thread."""

from __future__ import annotations

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from redrive import receipts
from redrive.errors import AppClosed, CalledFromLoop, InvalidReceipt
from redrive.receipts import blocking
from redrive.receipts.blocking import ReceiptClient
from redrive.receipts.model import final_id
from tests.blocking.kit import loop_threads
from tests.blocking.signatures import differences
from tests.receipts.target import receipt
from tests.support.broker import Broker, status

TWINS: dict[object, object] = {
    receipts.ReceiptClient: blocking.ReceiptClient,
    receipts.DeadLetterQueue: blocking.DeadLetterQueue,
    receipts.WorkPoller: blocking.WorkPoller,
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/redrive.db"


def test_both_clients_have_the_same_methods() -> None:
    assert differences(receipts.ReceiptClient, blocking.ReceiptClient, TWINS) == []
    assert inspect.signature(receipts.ReceiptClient) == inspect.signature(blocking.ReceiptClient)
    assert blocking.AsyncGateClient is blocking.ReceiptClient


def test_both_queues_of_dead_letters_have_the_same_methods() -> None:
    # The view of an app that is awaited has no twin: nothing could call it from here.
    found = differences(receipts.DeadLetterQueue, blocking.DeadLetterQueue, TWINS)
    assert found == ["of is missing"]
    assert inspect.signature(receipts.DeadLetterQueue) == inspect.signature(blocking.DeadLetterQueue)


def test_a_receipt_is_delivered_or_kept_and_recovered(broker: Broker, url: str) -> None:
    with ReceiptClient(broker.url, url, max_receipt_retries=1, log=False) as client:
        assert client.send_receipt(receipt("one")) is True
        assert client.wait(client.submit(receipt("two"))) is True
        broker.script(status(500))
        assert client.send_receipt(receipt("three")) is False
        assert client.dead_letters.size() == client.metrics.dead_letters == 1
        (letter,) = client.dead_letters.get_all()
        assert letter.receipt.lease_id == "three"
        assert client.recover().delivered == (letter.id,)
        assert client.dead_letters.size() == 0
        with pytest.raises(InvalidReceipt):
            client.send_receipt(receipt(status="pending"))
    assert loop_threads() == []
    with pytest.raises(AppClosed):
        client.send_receipt(receipt("four"))


def test_threads_share_a_client(broker: Broker, url: str) -> None:
    with ReceiptClient(broker.url, url, log=False) as client, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(client.send_receipt, [receipt(f"lease-{n}") for n in range(20)]))
    assert len(broker.accepted) == 20


def test_a_with_inside_another_one_closes_nothing_and_hints_are_of_this_module(broker: Broker, url: str) -> None:
    client = ReceiptClient(broker.url, url, log=False)
    with pytest.raises(AppClosed, match="use it inside `with client:`"):
        client.send_receipt(receipt("one"))
    with client, ThreadPoolExecutor(2) as threads:

        def send(lease: str) -> bool:
            with client:
                return client.send_receipt(receipt(lease))

        assert list(threads.map(send, ["one", "two"])) == [True, True]
        assert client.send_receipt(receipt("three")) is True
    with pytest.raises(AppClosed, match="make a new ReceiptClient"):
        client.send_receipt(receipt("four"))
    with blocking.DeadLetterQueue(url) as letters:
        with letters:
            letters.store(receipt("five"))
        assert letters.size() == 1


def test_dead_letters_alone(url: str) -> None:
    with blocking.DeadLetterQueue(url) as queue:
        kept = queue.store(receipt(), attempts=5, error="down")
        assert queue.size() == 1
        assert queue.remove(kept) is True
        assert queue.get_all() == []
    assert loop_threads() == []


async def test_it_is_refused_where_a_loop_runs() -> None:
    client = ReceiptClient("http://127.0.0.1:9", "memory:", log=False)
    with pytest.raises(CalledFromLoop, match=r"redrive\.receipts"):
        client.open()
    for call, name in ((client.open, "ReceiptClient.open"), (client.recover, "ReceiptClient.recover")):
        with pytest.raises(CalledFromLoop, match=rf"^{name} of redrive\.receipts\.blocking would block"):
            call()
    with pytest.raises(CalledFromLoop, match=r"^WorkPoller\.run of redrive\.receipts\.blocking would block"):
        blocking.WorkPoller(client, lambda job: None).run()
    assert loop_threads() == []


def test_an_interrupted_client_can_be_closed_by_another_thread(broker: Broker, url: str) -> None:
    """Whoever waits is told when another thread closes the client."""
    broker.always(status(500))
    told: list[BaseException] = []
    client = ReceiptClient(broker.url, url, backoff_base=1_000, log=False).open()

    def send() -> None:
        try:
            client.send_receipt(receipt())
        except AppClosed as error:
            told.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    broker.wait_for(1)
    client.close()
    sender.join()
    assert len(told) == 1


def test_in_a_forked_child_it_says_that_its_worker_is_elsewhere(
    broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ReceiptClient(broker.url, url, log=False) as client:
        there: Any = client._host  # noqa: SLF001 - a fork in a test run would take all its threads along
        monkeypatch.setattr(there, "_pid", -1)
        with pytest.raises(AppClosed, match="another process"):
            client.send_receipt(receipt())
        monkeypatch.undo()
        assert client.send_receipt(receipt()) is True


def test_both_pollers_have_the_same_methods() -> None:
    assert differences(receipts.WorkPoller, blocking.WorkPoller, TWINS) == []
    # Its client is of its own kind, and what it polls by may be plain.
    both = [inspect.signature(one).parameters for one in (receipts.WorkPoller, blocking.WorkPoller)]
    assert [(each.name, each.default) for each in both[0].values()] == [
        (each.name, each.default) for each in both[1].values()
    ]


def test_a_poller_of_plain_functions(broker: Broker, url: str) -> None:
    jobs = [{"lease_id": f"lease-{n}", "task_id": f"task-{n}", "payload": n} for n in range(3)]

    def poll(most: int) -> list[dict[str, object]]:
        given, jobs[:] = jobs[:most], jobs[most:]
        return given

    def handle(job: blocking.Job) -> str:
        if not jobs and job.payload == 2:
            poller.stop()  # from within: asks, and does not wait for itself
        return f"number {job.payload}"

    with ReceiptClient(broker.url, url, log=False) as client:
        poller = blocking.WorkPoller(client, handle, poll=poll, renew=lambda _: None, polling_interval="10ms")
        poller.run()
        assert poller.active == {}
        finals = [final_id(client.queue, None, f"lease-{n}") for n in range(3)]
        for each in finals:
            assert client.wait(each)
    assert len(broker.of(tool="complete")) == 3
    assert loop_threads() == []


def test_a_poller_is_stopped_from_another_thread(broker: Broker, url: str) -> None:
    asked = threading.Event()

    def poll(most: int) -> list[dict[str, object]]:
        asked.set()
        return []

    with ReceiptClient(broker.url, url, log=False) as client:
        poller = blocking.WorkPoller(client, print, poll=poll, renew=lambda _: None, polling_interval="10ms")
        running = threading.Thread(target=poller.run)
        running.start()
        assert asked.wait(10)
        poller.stop()
        running.join(10)
        assert not running.is_alive()
