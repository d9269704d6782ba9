"""Rows H-01 to H-05, H-09 to H-11, H-20, H-22, H-23, H-26, H-27: what an answer means, when it is tried again, and in
which order.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest

from redrive.core.instants import moment
from redrive.errors import ConfigError
from redrive.webhooks import next_retry_delay, should_retry
from tests.support.lab import Lab, lab, memory_lab
from tests.webhooks.kit import (
    RESET,
    Answer,
    Hold,
    Step,
    add,
    delivering,
    ended,
    next_attempt,
    opened,
    put,
    receiving,
    running,
)

__all__ = ["lab", "memory_lab"]
DELAYS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


def test_h01_the_delays_of_the_seed() -> None:
    assert [next_retry_delay(attempts) for attempts in range(14)] == DELAYS
    assert next_retry_delay(100) == next_retry_delay(2**63) == 3600
    assert next_retry_delay(-1) == 1


async def test_h02_an_endpoint_that_always_fails_is_tried_by_the_schedule(lab: Lab) -> None:
    async with receiving(lab, then=500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        await lab.until(lambda: len(receiver.got) == 5)
        assert receiver.seconds == [0, 1, 3, 7, 15]
        webhook = await relay.webhooks.get(hook)
        now = moment(lab.clock.now())
        assert webhook.next_attempt_at == now + timedelta(seconds=16)
        assert [should_retry(webhook, now + timedelta(seconds=after)) for after in (15.9, 16)] == [False, True]
        while len(receiver.got) < 16:
            await next_attempt(lab, receiver, hook)
        times = receiver.seconds
        assert [after - before for before, after in pairwise(times)] == [*DELAYS, 3600]
        assert [each.attempt for each in receiver.got] == list(range(1, 17))


async def test_h03_an_answer_of_2xx_delivers(lab: Lab) -> None:
    steps: tuple[Step, ...] = (Answer(500, body=b"oops"), RESET, Answer(202, {"X-Seen": "yes"}, b"thanks"))
    async with receiving(lab, *steps) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, '{"n": 1}')
        webhook = await ended(lab, relay, hook)
        sent_at = lab.clock.now() - round((lab.clock.monotonic() / 1000 - receiver.got[2].at) * 1000)
        assert (webhook.status, webhook.attempts, webhook.error_message, webhook.reason) == ("delivered", 3, None, "")
        assert webhook.delivered_at == webhook.last_attempt_at == moment(sent_at)
        assert (webhook.next_attempt_at, webhook.payload, receiver.seconds) == (None, b'{"n": 1}', [0, 1, 3])
        first, _, last = [each.output.decode() for each in (await relay.app.history(hook)).attempts]
        assert first.startswith("HTTP 500\n")
        assert first.endswith("\n\noops")
        assert "X-Seen: yes\n" in last
        (once,) = await put(relay, "at the first try")
        webhook = await ended(lab, relay, once)
        assert (webhook.status, webhook.attempts) == ("delivered", 1)
        assert webhook.delivered_at is not None


async def test_h04_an_answer_of_4xx_fails_it_at_once(lab: Lab) -> None:
    async with receiving(lab, 404) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        webhook = await ended(lab, relay, hook)
        assert (webhook.status, webhook.attempts) == ("failed", 1)
        assert (webhook.error_message, webhook.reason) == ("the endpoint answered 404", "rule")
        assert webhook.delivered_at is None
        assert webhook.next_attempt_at is None
        lab.clock.advance("2h")
        await lab.pass_time("1m")
        assert len(receiver.got) == 1
        assert [each.id for each in await relay.webhooks.list(status="failed")] == [hook]


@pytest.mark.parametrize(("step", "error"), [(503, "the endpoint answered 503"), (RESET, "Disconnected")])
async def test_h05_a_5xx_or_a_broken_connection_leaves_it_pending(lab: Lab, step: Step, error: str) -> None:
    async with receiving(lab, then=step) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        await lab.quiet()
        for attempts in (1, 2, 3):
            webhook = await relay.webhooks.get(hook)
            assert (webhook.status, webhook.attempts) == ("pending", attempts)
            assert webhook.last_attempt_at == moment(lab.clock.now())
            assert webhook.next_attempt_at == moment(lab.clock.now() + 1000 * next_retry_delay(attempts - 1))
            assert error in (webhook.error_message or "")
            await next_attempt(lab, receiver, hook)


async def test_h05_a_target_that_refuses_connections_leaves_it_pending(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        async with receiving(lab) as other:
            await add(relay, other)
        async with running(lab, relay):
            (hook,) = await put(relay, "a")
            await lab.pass_time("2s")
            webhook = await relay.webhooks.get(hook)
            assert (webhook.status, webhook.attempts) == ("pending", 2)
            assert "Connect" in (webhook.error_message or "")


async def test_h09_the_next_one_waits_until_the_first_is_delivered_failed_or_dead(lab: Lab) -> None:
    async with receiving(lab, 500, 500, 200) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, max_age="1h")
        first, second = await put(relay, "A", "B")
        await lab.until(lambda: len(receiver.got) == 2)
        waiting = await relay.webhooks.get(second)
        assert (waiting.status, waiting.attempts, waiting.blocked_by) == ("pending", 0, first)
        await ended(lab, relay, second)
        receiver.script.extend([500, 404])
        first, second = await put(relay, "C", "D")
        await ended(lab, relay, second)
        assert (await relay.webhooks.get(first)).status == "failed"
        receiver.script.append(Answer(503, {"Retry-After": "86400"}))
        (first,) = await put(relay, "E")
        await lab.quiet()
        lab.clock.advance("30m")
        (second,) = await put(relay, "F")
        await lab.quiet()
        lab.clock.advance("31m")
        assert (await lab.drive(relay.maintain())).dead_lettered == 1
        assert (await ended(lab, relay, second)).status == "delivered"
        assert (await relay.webhooks.get(first)).status == "dead_letter"
        assert receiver.bodies == [*"AAAB", *"CCD", *"EF"]


async def test_h10_one_that_failed_lets_the_next_one_go(lab: Lab) -> None:
    async with receiving(lab, 422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        first, second = await put(relay, "A", "B")
        assert (await ended(lab, relay, second)).status == "delivered"
        assert (await relay.webhooks.get(first)).status == "failed"
        assert (receiver.bodies, receiver.seconds) == (["A", "B"], [0, 0])


@pytest.mark.parametrize("order", ["block", "park"])
async def test_h10_it_does_not_where_the_endpoint_wants_it_so(lab: Lab, order: str) -> None:
    async with receiving(lab, 422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, order=order)
        first, second, third = await put(relay, "A", "B", "C")
        assert (await ended(lab, relay, first)).status == "failed"
        lab.clock.advance("1h")
        await lab.pass_time("10s")
        waiting = await relay.webhooks.get(second)
        assert (waiting.status, waiting.attempts, waiting.blocked_by) == ("pending", 0, first)
        await relay.webhooks.replay(first, reason="mended")
        await ended(lab, relay, third)
        assert receiver.bodies == ["A", "A", "B", "C"]


async def test_h11_a_blocked_endpoint_does_not_hold_up_another(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        receiver.by_path["/down"] = 503
        for each in ("down", "well"):
            await add(relay, receiver, each)
        (down,) = await put(relay, "stuck", endpoint="down")
        ids = await put(relay, *"abc", endpoint="well")
        await ended(lab, relay, ids[-1])
        assert [each.body for each in receiver.got if each.path == "/well"] == [b"a", b"b", b"c"]
        assert receiver.seconds[-1] < 1
        assert (await relay.webhooks.get(down)).status == "pending"


async def test_h20_a_slow_target_gets_one_request(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay, delivering(lab, receiver):
        await add(relay, receiver)
        hold = Hold()
        receiver.script.append(hold)
        (hook,) = await put(relay, "a")
        await lab.until(lambda: hold.reached)
        await lab.pass_time("2m")
        assert (await relay.webhooks.get(hook)).status == "pending"
        hold.release()
        webhook = await ended(lab, relay, hook)
        await lab.pass_time("2m")
        assert (webhook.status, webhook.attempts, len(receiver.got)) == ("delivered", 1, 1)


@pytest.mark.slow
async def test_h22_two_hundred_failures_are_still_retried_hourly(lab: Lab) -> None:
    async with receiving(lab, then=500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, max_age="30d")
        (hook,) = await put(relay, "a")
        await lab.quiet()
        while len(receiver.got) < 202:
            await next_attempt(lab, receiver, hook)
        times = receiver.seconds
        waits = [after - before for before, after in pairwise(times)]
        assert waits == DELAYS[:12] + [3600] * 189
        webhook = await relay.webhooks.get(hook)
        assert (webhook.status, webhook.attempts) == ("pending", 202)
        assert webhook.next_attempt_at == moment(lab.clock.now() + 3_600_000)


async def test_h23_what_came_in_the_same_instant_goes_out_in_its_order(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        ids = await put(relay, *[str(number) for number in range(100)])
        assert len({(await lab.item(hook)).enqueued_at for hook in ids}) == 1
        receiver.script.extend([200] * 10 + [500, 500] + [200] * 20 + [404])
        async with running(lab, relay):
            await ended(lab, relay, ids[-1])
        numbers = [int(each) for each in receiver.bodies]
        assert numbers == sorted(numbers)
        assert sorted(set(numbers)) == list(range(100))
        assert len(numbers) == 102


async def test_h26_a_retry_after_is_waited_for(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        for status in (429, 503):
            for asked, wait in (("120", 120), ("7.5", 8), ("0", 1), ("soon", 1), (str(2 * 86400), 86400)):
                receiver.got.clear()
                receiver.script.append(Answer(status, {"Retry-After": asked}))
                (hook,) = await put(relay, "a")
                await lab.quiet()
                await next_attempt(lab, receiver, hook)
                assert receiver.seconds == [0, wait]
                assert (await ended(lab, relay, hook)).attempts == 2
        receiver.got.clear()
        at = moment(lab.clock.now() + 90_400).replace(microsecond=0)
        receiver.script.append(Answer(429, {"retry-after": format_datetime(at, usegmt=True)}))
        (hook,) = await put(relay, "a")
        await lab.until(lambda: len(receiver.got) == 2)
        assert at <= moment(lab.clock.now()) <= at + timedelta(seconds=1)


async def test_h26_it_is_never_sooner_than_its_own_schedule(lab: Lab) -> None:
    steps = [Answer(429, {"Retry-After": "1"})] * 4
    async with receiving(lab, *steps) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        await ended(lab, relay, *await put(relay, "a"))
        assert receiver.seconds == [0, 1, 3, 7, 15]


async def test_h27_which_statuses_are_final(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        for status in (408, 425, 429, 500, 599):
            receiver.script.append(status)
            webhook = await ended(lab, relay, *await put(relay, "a"))
            assert (webhook.status, webhook.attempts) == ("delivered", 2), status
        for status in (301, 307, 400, 401, 403, 404, 409, 422):
            receiver.script.append(Answer(status, {"Location": f"{receiver.url}/elsewhere"}))
            webhook = await ended(lab, relay, *await put(relay, "a"))
            assert (webhook.status, webhook.attempts) == ("failed", 1), status
        assert {each.path for each in receiver.got} == {"/shop"}
        receiver.script.append(410)
        assert (await ended(lab, relay, *await put(relay, "a"))).status == "failed"
        endpoint = await relay.endpoints.get("shop")
        assert (endpoint.status, endpoint.status_reason) == ("disabled", "it answered 410 Gone")


async def test_h27_an_endpoint_may_judge_them_otherwise(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, retry_on=[404, 410, "3xx"], fail_on=["5xx", 429], max_age="1d")
        for status in (404, 410, 301):
            receiver.script.append(status)
            webhook = await ended(lab, relay, *await put(relay, "a"))
            assert (webhook.status, webhook.attempts) == ("delivered", 2), status
        for status in (500, 429, 422):
            receiver.script.append(status)
            webhook = await ended(lab, relay, *await put(relay, "a"))
            assert (webhook.status, webhook.attempts) == ("failed", 1), status
        assert (await relay.endpoints.get("shop")).status == "active"
        receiver.then = 301
        (hook,) = await put(relay, "a")
        await lab.quiet()
        lab.clock.advance("23h")
        await lab.until(lambda: len(receiver.got) == 11)
        lab.clock.advance("2h")
        await ended(lab, relay, hook, limit="3h")
        assert (await relay.webhooks.get(hook)).status == "dead_letter", "not endless"


async def test_h14_each_attempt_is_logged_and_names_itself(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    async with receiving(lab, 500, 500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        with caplog.at_level(logging.INFO, "redrive.webhooks"):
            (hook,) = await put(relay, "a")
            await ended(lab, relay, hook)
        lines = [record.getMessage() for record in caplog.records if record.name == "redrive.webhooks"]
        assert lines == [f"webhook {hook} attempt {n}: HTTP {status}" for n, status in ((1, 500), (2, 500), (3, 200))]
        assert [(each.id, each.attempt) for each in receiver.got] == [(hook, 1), (hook, 2), (hook, 3)]
        assert {each.header("Idempotency-Key") for each in receiver.got} == {hook}


@pytest.mark.parametrize("wrong", [{"retry_on": "404"}, {"retry_on": [700]}, {"fail_on": ["4x"]}, {"timeout": "51s"}])
async def test_h27_what_cannot_be_a_status_or_a_timeout_is_refused(memory_lab: Lab, wrong: Any) -> None:
    async with receiving(memory_lab) as receiver, opened(memory_lab, receiver) as relay:
        with pytest.raises(ConfigError) as refused:
            await add(relay, receiver, **wrong)
        assert refused.value.field in wrong
