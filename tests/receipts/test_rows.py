"""The acceptance table: what becomes of a receipt, call by call and second by second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.item import Item
from redrive.core.states import State
from redrive.errors import ConfigError, StoreUnavailable
from redrive.receipts import ReceiptClient
from redrive.receipts.model import Envelope
from redrive.receipts.transports import Mcp
from redrive.testing.faults import FaultyStore
from tests.receipts.target import LIMITED, REFUSED, SERVER, UNREACHABLE, Target, Wired, opened, receipt
from tests.support.broker import Broker, Step, error_text, rpc_error, tool_error
from tests.support.lab import LABS, Lab, Shared, open_lab

SEED = [0, 2, 6, 14, 30]
"""Seconds of the five tries of the seed's table."""


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab("sqlite", tmp_path) as made:
        yield made


async def letters(client: ReceiptClient) -> tuple[Item, ...]:
    return (await client.app.letters.find(f"queue:{client.queue}")).items


async def test_r01_success_on_the_first_call(lab: Lab) -> None:
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert target.seconds == [0]
        assert client.metrics.retries == 0
        assert await letters(client) == ()


async def test_r02_r08_a_target_that_always_fails_gets_five_calls_and_the_letter_has_everything(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    given = receipt(artifact_pointers=["s3://a", {"kind": "log", "uri": "s3://b"}], trace="kept as it is")
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(given)) is False
        assert target.seconds == SEED
        (letter,) = await letters(client)
        assert Envelope.decode(letter.payload).receipt == given
        assert letter.errors == 5
        assert letter.letter is not None
        last_try = max(attempt.started_at for attempt in (await client.app.history(letter.id)).attempts)
        assert letter.letter.died_at >= last_try
        assert letter.letter.reason == "max_attempts"
        (entry,) = await client.dead_letters.get_all()
        assert (entry.receipt.to_dict(), entry.attempts) == (given, 5)
        assert entry.failed_at.timestamp() * 1000 >= last_try
        assert letter.letter.failure.type == "redrive.errors.ReceiptServerError"
        assert letter.letter.failure.code == "500"


async def test_r03_two_server_errors_then_success(lab: Lab) -> None:
    target = Target(lab.clock, SERVER, SERVER)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert target.seconds == SEED[:3]
        assert client.metrics.retries == 2
        assert await letters(client) == ()


async def test_r04_r09_a_refusal_ends_it_at_the_first_call(lab: Lab) -> None:
    target = Target(lab.clock, then=REFUSED)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert target.seconds == [0]
        (letter,) = await letters(client)
        assert letter.letter is not None
        assert (letter.errors, letter.letter.reason) == (1, "rule")
        assert [entry.attempts for entry in await client.dead_letters.get_all()] == [1]


async def test_r05_a_rate_limit_is_waited_for(lab: Lab) -> None:
    target = Target(lab.clock, LIMITED)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is True
        assert target.seconds == [0, 2]


@pytest.mark.parametrize("failure", [UNREACHABLE, TimeoutError("no answer")])
async def test_r06_an_unreachable_target_gets_the_same_schedule(lab: Lab, failure: Exception) -> None:
    target = Target(lab.clock, then=failure)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert target.seconds == SEED
        assert [letter.errors for letter in await letters(client)] == [5]


async def test_r07_whatever_fails_counts_and_a_refusal_ends_it(lab: Lab) -> None:
    target = Target(lab.clock, SERVER, LIMITED, UNREACHABLE, REFUSED)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert target.seconds == SEED[:4]
        assert [letter.errors for letter in await letters(client)] == [4]


async def test_r15_what_was_counted_after_r03_and_r02(lab: Lab) -> None:
    target = Target(lab.clock, SERVER, SERVER, None, then=SERVER)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt("one"))) is True
        assert await lab.drive(client.send_receipt(receipt("two"))) is False
        assert client.metrics.receipts == {("complete", "true"): 1, ("complete", "false"): 1}
        assert client.metrics.retries == 2 + 4
        assert client.metrics.dead_letters == 1


async def test_r16_base_three_and_three_tries(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt_with_retry(receipt(), 3, 3)) is False
        assert target.seconds == [0, 3, 12]


async def test_r17_one_try(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    async with opened(lab, target, max_receipt_retries=1) as client:
        assert await lab.drive(client.send_receipt(receipt())) is False
        assert target.seconds == [0]
        assert len(await letters(client)) == 1


async def test_r20_a_receipt_that_cannot_be_written_down_is_an_error_of_the_caller(lab: Lab) -> None:
    target = Target(lab.clock)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        faulty.fail("put")
        with pytest.raises(StoreUnavailable):
            await lab.drive(client.send_receipt(receipt()))
        assert target.calls == []
        assert client.metrics.store_errors >= 1


async def test_r20_dead_lettering_that_fails_is_told_and_the_receipt_stays_pending(lab: Lab) -> None:
    target = Target(lab.clock, then=REFUSED)
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with opened(lab, target, store=faulty) as client:
        faulty.fail("settle")
        with pytest.raises(StoreUnavailable, match="the receipt is durable"):
            await lab.drive(client.send_receipt(receipt()))
        assert client.metrics.store_errors >= 1
        (pending,) = (await client.app.find(f"queue:{client.queue}")).items
        assert pending.state is State.LEASED
        faulty.heal()
        assert await lab.drive(client.wait(pending.id)) is False
        assert len(await letters(client)) == 1


async def test_r21_a_restart_between_two_tries_goes_on_with_the_third_at_its_time(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    async with opened(lab, target) as client:
        sent = await lab.drive(client.submit(receipt()))
        await lab.until(lambda: len(target.calls) == 2)
        await lab.pass_time("1s")
    await lab.pass_time("1s")
    async with opened(lab, target) as client:
        assert await lab.drive(client.wait(sent)) is False
        assert target.seconds == SEED
        assert {key for _, _, key, _ in target.calls} == {sent}
        assert [letter.errors for letter in await letters(client)] == [5]


SHAPES = [rpc_error, tool_error, error_text]


@pytest.mark.parametrize("shape", SHAPES)
async def test_r24_each_shape_of_an_error_is_judged_by_its_code(lab: Lab, broker: Broker, shape: Any) -> None:
    def wired(*steps: Step) -> Wired:
        broker.script(*steps)
        return Wired(lab, wire)

    wire = Mcp(f"{broker.url}/mcp", "", 5_000, 5)
    await wire.open()
    began = lab.clock.monotonic()
    try:
        async with opened(lab, wired(shape("INVALID_STATE_TRANSITION")), queue="a") as client:
            assert await lab.drive(client.send_receipt(receipt())) is False
            assert [letter.errors for letter in await letters(client)] == [1]
        async with opened(lab, wired(shape("LEASE_INVALID_OR_EXPIRED")), queue="b") as client:
            assert await lab.drive(client.send_receipt(receipt())) is False
            assert await letters(client) == ()
        assert lab.clock.monotonic() == began
        async with opened(lab, wired(shape("RATE_LIMIT_EXCEEDED", retry_after=7)), queue="c") as client:
            assert await lab.drive(client.send_receipt(receipt())) is True
            assert lab.clock.monotonic() - began == 7_000
        async with opened(lab, wired(shape("SOMETHING_NEW")), queue="d") as client:
            assert await lab.drive(client.send_receipt(receipt())) is True
            assert lab.clock.monotonic() - began == 9_000
    finally:
        await wire.close()
    assert len(broker.calls) == 6


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "5", 10**9])
async def test_r25_a_number_of_tries_that_cannot_be_is_refused(lab: Lab, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_receipt_retries"):
        ReceiptClient(None, "memory:", transport=Target(lab.clock), max_receipt_retries=wrong)
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        with pytest.raises(ConfigError, match="max_retries"):
            await client.send_receipt_with_retry(receipt(), max_retries=wrong)
    assert target.calls == []


@pytest.mark.parametrize("wrong", [0, 0.0, -2.0, float("nan"), float("inf"), True, "2"])
async def test_r25_a_base_that_cannot_be_is_refused(lab: Lab, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="backoff_base"):
        ReceiptClient(None, "memory:", transport=Target(lab.clock), backoff_base=wrong)
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        with pytest.raises(ConfigError, match="backoff_base"):
            await client.send_receipt_with_retry(receipt(), backoff_base=wrong)
    assert target.calls == []


@pytest.fixture(params=[each for each in LABS if each != "sqlite" and getattr(each, "values", None) != ("sqlite",)])
async def other(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(request.param, tmp_path) as made:
        yield made


async def test_every_store_keeps_the_schedule_and_the_letter(other: Lab) -> None:
    """R-02, R-03, R-04, R-21 in short; a final receipt makes way for itself."""
    lab = other
    target = Target(lab.clock, SERVER, SERVER)
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt("one"))) is True
        assert target.seconds == SEED[:3]
        target.then = REFUSED
        assert await lab.drive(client.send_receipt(receipt("two"))) is False
        target.then = SERVER
        first = await lab.drive(client.submit(receipt("three", "running")))
        await lab.until(lambda: len(target.calls) == 6)
        target.then = None
    target.calls.clear()
    async with opened(lab, target) as client:
        assert await lab.drive(client.send_receipt(receipt("three"))) is True
        assert target.leases == [("three", "complete")]
        assert (await client.app.get(first)).state is State.CANCELLED
        assert [Envelope.decode(each.payload).open().lease_id for each in await letters(client)] == ["two"]
