"""What a client promises beside the schedule: one delivery for one receipt, in order, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive.app import Redrive
from redrive.core.decide import Charge, ToDone, ToReady
from redrive.core.item import Item
from redrive.core.states import State
from redrive.core.verbs import Settlement
from redrive.errors import (
    AppClosed,
    ConfigError,
    InvalidReceipt,
    MissingExtra,
    NotFound,
    OutcomeUnknown,
    PayloadNotSerialisable,
    PayloadTooLarge,
    QueueFull,
    ReceiptLimited,
    ReceiptRefused,
)
from redrive.receipts import AsyncGateClient, Receipt, ReceiptClient
from redrive.receipts.model import Envelope, final_id
from redrive.testing.faults import Fault, FaultyStore
from tests.receipts.target import GONE, REFUSED, SERVER, Mute, Target, opened, receipt
from tests.support.broker import Broker, error_text, status
from tests.support.lab import Lab, Shared, open_lab

TOKEN = "s3cret-t0ken-of-ours"  # noqa: S105 - not one of anybody's


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab("memory", tmp_path) as made:
        yield made


async def items(client: ReceiptClient) -> tuple[Item, ...]:
    return (await client.app.find(f"queue:{client.queue}")).items


async def reason_of(client: ReceiptClient, item_id: str) -> str:
    history = await client.app.history(item_id)
    notes = [attempt.note for attempt in history.attempts] + [deed.reason for deed in history.deeds]
    return notes[-1]


# --- one receipt, one delivery ---


async def test_the_same_receipt_sent_twice_is_delivered_once(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert await lab.drive(client.send_receipt(Receipt.of(receipt()))) is True
        assert len(target.calls) == 1


async def test_two_who_send_the_same_receipt_at_once_wait_for_one_delivery(lab: Lab) -> None:
    target = Target(lab.clock, SERVER)
    async with opened(lab, target) as client:
        both = asyncio.gather(client.send_receipt(receipt()), client.send_receipt(receipt()))
        assert list(await lab.drive(both)) == [True, True]
        assert target.seconds == [0, 2]
        assert len({key for _, _, key, _ in target.calls}) == 1


async def test_a_repeat_with_other_terms_or_at_another_time_is_the_same_receipt(lab: Lab) -> None:
    target = Target(lab.clock)
    timeless = {name: value for name, value in receipt().items() if name != "timestamp"}
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(timeless)) is True
        assert await lab.drive(client.send_receipt_with_retry(timeless, 7, 3.0)) is True
        assert len(target.calls) == 1


async def test_a_lease_is_ended_once_and_another_end_is_superseded(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        other = receipt(status="failed", summary="no")
        assert await lab.drive(client.send_receipt(other)) is False
        assert await lab.drive(client.send_receipt(other)) is False
        assert target.leases == [("lease-1", "complete")]
        late = await lab.drive(client.submit(other))
        assert (
            await reason_of(client, late)
            == f"superseded: final receipt {final_id('receipts', None, 'lease-1')} ended the lease"
        )


async def test_a_dead_receipt_that_is_sent_again_is_tried_anew(lab: Lab) -> None:
    target = Target(lab.clock, *[SERVER] * 7)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert len(target.calls) == 8
        await lab.quiet()
        (item,) = await items(client)
        assert item.state is State.DONE
        assert "sent again" in {deed.reason for deed in (await client.app.history(item.id)).deeds}


@pytest.mark.parametrize("delivered", [True, False])
async def test_one_that_a_recovery_is_trying_is_not_judged_before_that_has_ended(lab: Lab, delivered: bool) -> None:
    target = Target(lab.clock, REFUSED)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        (item,) = await items(client)
        (held,) = await lab.store.lease_letters([item.id], "recovery", 60_000)
        sending = asyncio.create_task(client.send_receipt(receipt()))
        await lab.pass_time("5s")
        assert not sending.done()
        decision = ToDone() if delivered else ToReady(0, Charge.NOTHING)
        await lab.store.settle_letters([Settlement(held.id, held.deliveries, decision)])
        assert await lab.drive(sending) is True
        # What the recovery delivered is not sent again, and what it did not is tried anew.
        assert len(target.calls) == (1 if delivered else 2)


async def test_one_that_was_thrown_away_can_be_sent_again(lab: Lab) -> None:
    target = Target(lab.clock, REFUSED)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        await client.app.letters.discard(f"queue:{client.queue}", reason="a test")
        assert await lab.drive(client.send_receipt(receipt())) is True


async def test_one_that_was_delivered_and_pruned_is_still_delivered(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        sent = await lab.drive(client.submit(receipt()))
        assert await lab.drive(client.wait(sent)) is True
        await client.app.prune("state:done", reason="a test")
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert await lab.drive(client.wait(sent)) is True
        assert len(target.calls) == 1


async def test_tenants_are_told_apart(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target, tenant_id="a") as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
    async with opened(lab, target, tenant_id="b") as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
    assert [tenant for _, _, _, tenant in target.calls] == ["a", "b"]


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
async def test_a_write_that_nobody_knows_the_end_of_is_repeated(lab: Lab, fault: Fault) -> None:
    target = Target(lab.clock)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        faulty.next("put", fault, fault)
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert len(target.calls) == len(await items(client)) == 1
        faulty.fail("put", fault)
        with pytest.raises(OutcomeUnknown):
            await lab.drive(client.send_receipt(receipt("another")))


async def test_receipts_that_are_sent_at_once_share_a_write_and_not_their_faults(lab: Lab) -> None:
    target = Target(lab.clock)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        every = [client.submit(receipt(f"lease-{number}")) for number in range(20)]
        assert len(set(await lab.drive(asyncio.gather(*every)))) == 20
        assert len(faulty.calls_of("put")) == 1
        await client.app.configure(client.queue, capacity=1_000, reason="a test")
        await client.app.pause(client.queue, reason="a test")
        await client.app.configure(client.queue, capacity=25, reason="a test")
        every = [client.submit(receipt(f"more-{number}")) for number in range(40)]
        told = await lab.drive(asyncio.gather(*every, return_exceptions=True))
        assert {type(each) for each in told} == {str, QueueFull}
        tally = await client.app.tally()
        assert [row.ready for row in tally.queues] == [25]


# --- order and supersede ---


async def test_a_running_receipt_that_waits_for_a_retry_makes_way_for_the_final_one(lab: Lab) -> None:
    target = Target(lab.clock, SERVER, SERVER)
    async with opened(lab, target) as client:
        running = asyncio.ensure_future(client.send_receipt(receipt(status="running")))
        await lab.until(lambda: len(target.calls) == 2)
        at = lab.clock.monotonic()
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert lab.clock.monotonic() - at < 1_000, "the third try would be in four seconds"
        assert await lab.drive(running) is False
        assert target.leases[2:] == [("lease-1", "complete")]
        states = {Envelope.decode(item.payload).open().status: item for item in await items(client)}
        assert states["running"].state is State.CANCELLED
        assert (await reason_of(client, states["running"].id)).startswith("superseded: final receipt")
        assert client.metrics.superseded["running"] == 1


async def test_a_running_receipt_that_comes_after_the_final_one_is_not_sent(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        late = await lab.drive(client.submit(receipt(status="running")))
        assert await lab.drive(client.wait(late)) is False
        assert target.leases == [("lease-1", "complete")]
        assert (await reason_of(client, late)).startswith("superseded: ")


async def test_a_dead_running_receipt_that_is_replayed_never_arrives_after_the_final_one(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        running = await client.dead_letters.store(receipt(status="running"))
        assert (await client.app.letters.replay([running], reason="a test")).changed == (running,)
        assert await lab.drive(client.wait(running)) is False
        assert (await client.app.get(running)).state is State.CANCELLED
        assert target.leases == [("lease-1", "complete")]


async def test_what_is_said_of_one_lease_arrives_in_its_order(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        ids = [await lab.drive(client.submit(receipt(status="running", summary=f"{part}/3"))) for part in (1, 2, 3)]
        ids.append(await lab.drive(client.submit(receipt())))
        await lab.drive(asyncio.gather(*map(client.wait, ids)))
    told = [each.summary for _, each, _, _ in target.calls if not each.final]
    assert told == sorted(told)
    assert target.leases[-1] == ("lease-1", "complete")


async def test_a_lease_that_is_gone_ends_the_receipt_as_superseded(lab: Lab) -> None:
    target = Target(lab.clock, then=GONE)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert len(target.calls) == 1
        (item,) = await items(client)
        assert item.state is State.CANCELLED
        assert "LEASE_INVALID_OR_EXPIRED" in await reason_of(client, item.id)


# --- waits ---


@pytest.mark.parametrize(("asked", "waited"), [(7, 7), (1, 2), (0.5, 2)])
async def test_the_longer_of_the_targets_wait_and_ours_counts(lab: Lab, asked: float, waited: float) -> None:
    target = Target(lab.clock, ReceiptLimited("slow down", retry_after=asked))
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert target.seconds == [0, waited]


async def test_jitter_spreads_the_waits_within_its_bounds(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    async with opened(lab, target, jitter=0.5, max_receipt_retries=2) as client:
        await lab.drive(asyncio.gather(*(client.send_receipt(receipt(f"lease-{n}")) for n in range(20))))
    waits = sorted(target.seconds[20:])
    assert waits[0] >= 1
    assert waits[-1] <= 3
    assert len(set(waits)) > 10


async def test_a_breaker_spares_a_target_that_is_down(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    async with opened(lab, target, breaker={"consecutive": 3, "interval": "1h"}) as client:
        for number in range(10):
            await lab.drive(client.submit(receipt(f"lease-{number}")))
        await lab.pass_time("90s")
        (gate,) = await client.app.gates()
        assert gate.state == "open"
        assert len(target.calls) < 20
        assert {item.state for item in await items(client)} == {State.READY}


# --- others, ends and faults ---


async def test_what_another_client_delivers_is_noticed(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target, work=False) as asking:
        sent = await lab.drive(asking.submit(receipt()))
        waiting = asyncio.ensure_future(asking.wait(sent))
        await lab.pass_time("5s")
        assert not waiting.done()
        async with opened(lab, target):
            assert await lab.drive(waiting) is True


async def test_a_client_that_does_no_work_says_so(lab: Lab) -> None:
    async with opened(lab, Target(lab.clock), work=False) as client:
        with pytest.raises(ConfigError, match="work"):
            await client.send_receipt(receipt())


async def test_whoever_waits_when_the_client_is_closed_is_told_and_nothing_is_lost(lab: Lab) -> None:
    target = Target(lab.clock, SERVER)
    async with opened(lab, target) as client:
        waiting = asyncio.ensure_future(client.send_receipt(receipt()))
        await lab.until(lambda: len(target.calls) == 1)
    with pytest.raises(AppClosed, match="durable"):
        await waiting
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert target.seconds == [0, 2]


async def test_a_worker_that_an_operator_stops_leaves_nobody_waiting(lab: Lab) -> None:
    target = Target(lab.clock, SERVER)
    async with opened(lab, target, backoff_base=1_000) as client:
        waiting = asyncio.ensure_future(client.send_receipt(receipt()))
        await lab.until(lambda: len(target.calls) == 1)
        ((beat,),) = [await client.app.workers()]
        await client.app.stop_worker(beat.worker, reason="a test", at_once=True)
        with pytest.raises(AppClosed, match="was stopped"):
            await lab.drive(waiting)
        with pytest.raises(AppClosed, match="was stopped"):
            await lab.drive(client.send_receipt(receipt("another")))
        assert len(await items(client)) == 2, "it is durable all the same"


async def test_a_worker_that_breaks_leaves_nobody_waiting(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Redrive, "run", broken)
    async with opened(lab, Target(lab.clock)) as client:
        with pytest.raises(AppClosed, match="a bug of ours"):
            await lab.drive(client.send_receipt(receipt()))


@pytest.mark.parametrize("error", [AttributeError("a bug of ours"), Mute()])
async def test_a_fault_of_ours_has_so_many_tries_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(*_: object) -> None:
        raise error

    async with opened(lab, Target(lab.clock)) as client:
        monkeypatch.setattr(client._transport, "deliver", broken)  # noqa: SLF001 - nothing outside can break it so
        assert await lab.drive(client.send_receipt(receipt())) is False
        (item,) = await items(client)
        assert item.errors == 5


async def test_whoever_gives_up_waiting_loses_nothing(lab: Lab) -> None:
    target = Target(lab.clock, SERVER)
    async with opened(lab, target) as client:
        waiting = asyncio.ensure_future(client.send_receipt(receipt()))
        await lab.until(lambda: len(target.calls) == 1)
        waiting.cancel()
        sent = final_id(client.queue, None, "lease-1")
        assert await lab.drive(client.wait(sent)) is True


async def test_what_is_no_receipt_in_the_queue_becomes_a_letter(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        for payload in ({"no": "receipt"}, b"\xff", {"receipt": {"lease_id": "a"}}):
            await lab.drive(client.app.enqueue(client.queue, payload))
        await lab.until(lambda: client.metrics.dead_letters == 3)
        assert {item.letter.failure.type for item in await items(client) if item.letter} == {
            "redrive.errors.PayloadUndecodable"
        }
        assert target.calls == []


async def test_a_pending_receipt_is_refused_before_anything_is_written(lab: Lab) -> None:
    async with opened(lab, Target(lab.clock)) as client:
        for send in (client.send_receipt, client.submit):
            with pytest.raises(InvalidReceipt, match="pending"):
                await send(receipt(status="pending"))
        with pytest.raises(PayloadNotSerialisable):
            await client.send_receipt(receipt(extra=float("inf")))
        with pytest.raises(PayloadTooLarge):
            await client.send_receipt(receipt(extra="x" * 2_000_000))
        assert await items(client) == ()


async def test_nobody_waits_for_what_was_never_sent(lab: Lab) -> None:
    async with opened(lab, Target(lab.clock)) as client:
        with pytest.raises(NotFound):
            await client.wait("nothing-of-the-kind")


async def test_a_client_that_is_not_open_says_so_and_may_be_closed_twice(lab: Lab) -> None:
    client = ReceiptClient(None, "memory:", transport=Target(lab.clock), log=False)
    await client.close()
    with pytest.raises(AppClosed, match="is not open"):
        await client.send_receipt(receipt())
    async with client:
        await client.open()
    await client.close()
    with pytest.raises(AppClosed, match="was closed"):
        await client.send_receipt(receipt())
    with pytest.raises(AppClosed, match="was closed"):
        await client.open()


async def test_a_client_that_cannot_open_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise MissingExtra("no")

    client = ReceiptClient("http://127.0.0.1:9", f"sqlite:///{tmp_path}/redrive.db", log=False)
    monkeypatch.setattr(client.metrics, "open", fails)
    with pytest.raises(MissingExtra):
        await client.open()
    monkeypatch.undo()
    async with ReceiptClient("http://127.0.0.1:9", f"sqlite:///{tmp_path}/redrive.db", log=False):
        pass


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"endpoint": ""}, "endpoint"),
        ({"transport": "smtp"}, "transport"),
        ({"auth_token": "two\nlines"}, "auth_token"),
        ({"tenant_id": " "}, "tenant_id"),
        ({"tenant_id": 5}, "tenant_id"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"concurrency": 0}, "concurrency"),
        ({"queue": "two words"}, "queue"),
        ({"breaker": "yes"}, "breaker"),
        ({"breaker": {"colour": 1}}, "colour"),
        ({"metrics_prefix": "1st"}, "metrics_prefix"),
        ({"store": "nosql://x"}, "store"),
        ({"receipts_file": 5}, "receipts_file"),
        ({"clock": 5}, "clock: 5 is not a clock"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    endpoint = options.pop("endpoint", "http://b")
    with pytest.raises(ConfigError, match=field):
        ReceiptClient(endpoint, options.pop("store", "memory:"), **options)


async def test_a_file_of_dead_letters_is_there_when_the_client_is_open(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "receipts.json"
    text = json.dumps([{"receipt": receipt(), "failed_at": "2024-01-15T10:30:45Z", "attempts": 5}])
    file.write_text(text)
    for _ in range(2):
        async with opened(lab, Target(lab.clock), receipts_file=file) as client:
            assert client.metrics.dead_letters == 1
            assert [each.attempts for each in await client.dead_letters.get_all()] == [5]
        assert json.loads(file.read_text()) == json.loads(text)


# --- over the wire ---


@pytest.mark.parametrize("transport", ["mcp", "http"])
async def test_a_receipt_over_a_real_wire(broker: Broker, tmp_path: Path, transport: str) -> None:
    broker.script(status(500))
    async with AsyncGateClient(
        broker.url, f"sqlite:///{tmp_path}/redrive.db", transport=transport, tenant_id="t", backoff_base=0.01, log=False
    ) as client:
        assert await client.send_receipt(receipt()) is True
        assert await client.send_receipt(receipt("running", "running")) is True
        broker.script(status(400))
        assert await client.send_receipt(receipt("refused")) is False
        broker.down()
        assert await client.send_receipt(receipt("down")) is False
    first, second = broker.calls[:2]
    assert first.key == second.key
    assert second.arguments["tenant_id"] == "t"


async def test_the_token_is_nowhere_to_be_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with Broker(token="another") as broker:  # noqa: S106 - of the broker's
        broker.script(status(500, {"error": f"who is {TOKEN}?"}))
        async with ReceiptClient(
            broker.url, f"sqlite:///{tmp_path}/redrive.db", auth_token=TOKEN, backoff_base=0.01
        ) as client:
            assert await client.send_receipt(receipt()) is False
            (letter,) = (await client.app.letters.find("")).items
            assert letter.letter is not None
            assert letter.letter.failure.code == "UNAUTHORIZED"
            evidence = f"{await client.app.history(letter.id)}"
            assert TOKEN not in evidence + repr(client) + str(vars(client)) + caplog.text
    for file in tmp_path.iterdir():
        assert TOKEN.encode() not in file.read_bytes()


async def test_tools_are_called_for_the_tenant_and_only_over_mcp(broker: Broker) -> None:
    broker.add_task({"n": 1})
    async with ReceiptClient(broker.url, "memory:", tenant_id="t", log=False) as client:
        assert await client.call("asyncgate.lease_next", {"worker_id": "w"})
        assert broker.calls[-1].arguments["tenant_id"] == "t"
        broker.script(error_text("UNAUTHORIZED"))
        with pytest.raises(ReceiptRefused):
            await client.call("asyncgate.lease_next", {"worker_id": "w"})
    async with ReceiptClient(broker.url, "memory:", transport="http", log=False) as client:
        with pytest.raises(ConfigError, match="mcp"):
            await client.call("asyncgate.lease_next", {})
