"""The acceptance table: what becomes of a receipt, call by call and second by second."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from redrive.core.item import Item
from redrive.core.states import State
from redrive.errors import AppClosed, ConfigError, StoreUnavailable
from redrive.receipts import ReceiptClient, receipts_json
from redrive.receipts.model import Envelope, final_id
from redrive.receipts.transports import Mcp
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.receipts.target import LIMITED, REFUSED, SERVER, UNREACHABLE, Target, Wired, opened, receipt
from tests.support.broker import Broker, Step, error_text, rpc_error, tool_error
from tests.support.lab import LABS, Lab, Shared, lab, memory_lab

__all__ = ["lab", "memory_lab"]
SEED = [0, 2, 6, 14, 30]
"""Seconds of the five tries of the seed's table."""
DURABLE = pytest.mark.parametrize("lab", [each for each in LABS if each != "memory"], indirect=True)
"""For rows that speak of a restart, which nothing in memory survives."""


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
        assert last_try <= entry.failed_at.timestamp() * 1000 <= lab.clock.now()
        assert json.loads(receipts_json.dump([entry.entry])) == [
            {"receipt": given, "failed_at": receipts_json.iso(entry.failed_at), "attempts": 5}
        ]
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
        (entry,) = await client.dead_letters.get_all()
        assert (entry.receipt.to_dict(), entry.attempts) == (receipt(), 1)
        (attempt,) = (await client.app.history(letter.id)).attempts
        assert attempt.started_at <= entry.failed_at.timestamp() * 1000 <= lab.clock.now()


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


async def crash(lab: Lab, client: ReceiptClient, faulty: FaultyStore) -> None:
    """The process of the client dies at its next call of the store. The next one has a new handle on the store."""
    faulty.crash_at(faulty.points + 1)
    with suppress(SimulatedCrash):
        await lab.drive(client.dead_letters.store(receipt("never written")))
    assert faulty.crashed
    with suppress(SimulatedCrash, AppClosed):
        await lab.drive(client.close())
    await lab.reopen()


def doomed(lab: Lab, target: Target) -> tuple[ReceiptClient, FaultyStore]:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    return ReceiptClient(None, faulty, transport=target, clock=lab.clock, log=False, actor="doomed"), faulty


@DURABLE
async def test_r18_what_was_stored_before_a_crash_is_there_and_counted_after_it(lab: Lab) -> None:
    first, faulty = doomed(lab, Target(lab.clock))
    await lab.drive(first.open())
    await lab.drive(first.dead_letters.store(receipt("a", note="as it is"), attempts=5, error="boom"))
    (before,) = await first.dead_letters.get_all()
    await crash(lab, first, faulty)
    await lab.pass_time("1m")
    async with opened(lab, Target(lab.clock)) as client:
        assert client.metrics.dead_letters == 1, "at once"
        assert await client.dead_letters.get_all() == [before]
        await lab.drive(client.dead_letters.store(receipt("b"), attempts=1))
        await lab.quiet()
        assert client.metrics.dead_letters == await client.dead_letters.size() == 2
        kept, new = await client.dead_letters.get_all()
        assert (kept, kept.receipt.to_dict(), kept.attempts) == (before, receipt("a", note="as it is"), 5)
        assert (new.receipt.to_dict(), new.attempts) == (receipt("b"), 1)


@DURABLE
async def test_r21_a_crash_between_two_tries_goes_on_with_the_third_at_its_time(lab: Lab) -> None:
    target = Target(lab.clock, then=SERVER)
    first, faulty = doomed(lab, target)
    await lab.drive(first.open())
    sent = await lab.drive(first.submit(receipt()))
    await lab.until(lambda: len(target.calls) == 2)
    await lab.pass_time("1s")
    item = await lab.item(sent)
    assert (item.errors, item.state, item.due_at) == (2, State.READY, lab.clock.now() + 3_000)
    await crash(lab, first, faulty)
    await lab.pass_time("1s")
    async with opened(lab, target) as client:
        assert len(target.calls) == 2, "not before it is due"
        assert await lab.drive(client.wait(sent)) is False
        assert target.seconds == SEED
        assert {key for _, _, key, _ in target.calls} == {sent}
        assert [letter.errors for letter in await letters(client)] == [5]
        assert [entry.attempts for entry in await client.dead_letters.get_all()] == [5]
        assert len((await client.app.history(sent)).attempts) == 5


@DURABLE
async def test_r21_a_restart_after_the_due_time_makes_the_third_try_at_once(lab: Lab) -> None:
    target = Target(lab.clock, SERVER, SERVER)
    first, faulty = doomed(lab, target)
    await lab.drive(first.open())
    sent = await lab.drive(first.submit(receipt()))
    await lab.until(lambda: len(target.calls) == 2)
    await lab.pass_time("1s")
    await crash(lab, first, faulty)
    await lab.pass_time("1h")
    async with opened(lab, target) as client:
        assert await lab.drive(client.wait(sent)) is True
        assert target.seconds == [0, 2, 3_603]


@pytest.mark.slow
async def test_r26_two_clients_with_a_thousand_dead_letters_each(lab: Lab) -> None:
    async def send(client: ReceiptClient, name: str) -> list[bool]:
        sending = [client.send_receipt(receipt(f"{name}-{number}")) for number in range(1_000)]
        return await asyncio.gather(*sending)

    target = Target(lab.clock, then=REFUSED)
    async with opened(lab, target) as ann, opened(lab, target) as bob:
        sent = await lab.drive(asyncio.gather(send(ann, "ann"), send(bob, "bob")))
        assert [set(each) for each in sent] == [{False}] * 2
        found = await ann.dead_letters.get_all()
        expected = {final_id("receipts", None, f"{name}-{n}") for name in ("ann", "bob") for n in range(1_000)}
        assert ({each.id for each in found}, len(found)) == (expected, 2_000)
        assert {each.attempts for each in found} == {1}
        assert await bob.dead_letters.size() == await lab.drive(bob.metrics.refresh()) == 2_000
        assert (await ann.app.check()).findings == ()


SHAPES = [rpc_error, tool_error, error_text]


@pytest.mark.parametrize("shape", SHAPES)
async def test_r24_each_shape_of_an_error_is_judged_by_its_code(lab: Lab, broker: Broker, shape: Any) -> None:
    def wired(*steps: Step) -> Wired:
        broker.script(*steps)
        return Wired(lab, wire)

    wire = Mcp(f"{broker.url}/mcp", "", 5_000, 5)
    await wire.open()
    try:
        for code in ("INVALID_STATE_TRANSITION", "UNAUTHORIZED", "QUOTA_EXCEEDED"):
            target = wired(shape(code))
            async with opened(lab, target, queue=code) as client:
                assert await lab.drive(client.send_receipt(receipt())) is False
                assert [(letter.errors, letter.attempt) for letter in await letters(client)] == [(1, 1)]
                (entry,) = await client.dead_letters.get_all()
                assert code in entry.error
            assert len(target.at) == 1, "no retry"
        target = wired(shape("LEASE_INVALID_OR_EXPIRED"))
        async with opened(lab, target, queue="gone") as client:
            assert await lab.drive(client.send_receipt(receipt())) is False
            assert await letters(client) == ()
        assert len(target.at) == 1
        for code, more, wait in (("RATE_LIMIT_EXCEEDED", {"retry_after": 7}, 7_000), ("SOMETHING_NEW", {}, 2_000)):
            target = wired(shape(code, **more))
            async with opened(lab, target, queue=code) as client:
                assert await lab.drive(client.send_receipt(receipt())) is True
            first, second = target.at
            assert wait <= second - first < wait + 1_000
    finally:
        await wire.close()
    assert len(broker.calls) == 8


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5, "5", 10**9])
async def test_r25_a_number_of_tries_that_cannot_be_is_refused(memory_lab: Lab, wrong: Any) -> None:
    lab = memory_lab
    with pytest.raises(ConfigError, match="max_receipt_retries"):
        ReceiptClient(None, "memory:", transport=Target(lab.clock), max_receipt_retries=wrong)
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        with pytest.raises(ConfigError, match="max_retries"):
            await client.send_receipt_with_retry(receipt(), max_retries=wrong)
    assert target.calls == []


@pytest.mark.parametrize("wrong", [0, 0.0, -2.0, float("nan"), float("inf"), True, "2"])
async def test_r25_a_base_that_cannot_be_is_refused(memory_lab: Lab, wrong: Any) -> None:
    lab = memory_lab
    with pytest.raises(ConfigError, match="backoff_base"):
        ReceiptClient(None, "memory:", transport=Target(lab.clock), backoff_base=wrong)
    target = Target(lab.clock)
    async with opened(lab, target) as client:
        with pytest.raises(ConfigError, match="backoff_base"):
            await client.send_receipt_with_retry(receipt(), backoff_base=wrong)
    assert target.calls == []


async def test_a_final_receipt_does_not_wait_for_a_running_one(lab: Lab) -> None:
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
