"""Rows H-12, H-18, H-19, H-21, H-28, H-31 and H-32: crashes, lost leases, late answers, and what comes in wrong."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from functools import partial

import pytest

from redrive.core.item import Ending
from redrive.core.states import State
from redrive.events import SettleRefused
from redrive.testing.faults import FaultyStore
from redrive.webhooks import Relay
from tests.support.lab import LABS, Lab, Seen, Shared, lab
from tests.webhooks.kit import (
    Answer,
    Hold,
    Receiver,
    Step,
    add,
    crash,
    delivering,
    ended,
    opened,
    post,
    put,
    receiving,
    relay_on,
    running,
)

__all__ = ["lab"]
DURABLE = pytest.mark.parametrize("lab", [each for each in LABS if each != "memory"], indirect=True)
"""For rows that speak of a restart, which nothing in memory survives."""


async def doomed(lab: Lab, receiver: Receiver) -> tuple[Relay, FaultyStore, asyncio.Task[None]]:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    relay = relay_on(lab, receiver, faulty)
    await lab.drive(relay.open())
    return relay, faulty, asyncio.create_task(relay.run())


@DURABLE
@pytest.mark.parametrize(("away", "next_at"), [("2s", 7), ("10m", 604)])
async def test_h12_a_restart_between_two_attempts_keeps_the_due_time(lab: Lab, away: str, next_at: int) -> None:
    async with receiving(lab, 500, 500, 500, 500) as receiver:
        relay, faulty, task = await doomed(lab, receiver)
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        await lab.until(lambda: len(receiver.got) == 3)
        await lab.pass_time("1s")
        await crash(lab, relay, faulty, task)
        await lab.pass_time(away)
        async with delivering(lab, receiver) as relay:
            assert len(receiver.got) == (3 if next_at == 7 else 4)
            webhook = await ended(lab, relay, hook)
            assert receiver.seconds == [0, 1, 3, next_at, next_at + 8]
            assert (webhook.status, webhook.attempts) == ("delivered", 5)
            assert [each.attempt for each in receiver.got] == [1, 2, 3, 4, 5]


def github(body: bytes, secret: str) -> list[tuple[str, str]]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return [("X-Hub-Signature-256", f"sha256={digest}"), ("X-GitHub-Delivery", hashlib.md5(body).hexdigest())]  # noqa: S324 - an hook


async def test_h18_a_bad_signature_is_stored_flagged_and_delivered(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, provider="github", secret="right")  # noqa: S106 - for this test
        for secret, valid in (("wrong", False), ("right", True)):
            body = f'{{"signed": "{secret}"}}'.encode()
            told = await post(relay, "shop", body, github(body, secret))
            assert told.status == 200
            webhook = await ended(lab, relay, told.body["id"])
            assert (webhook.status, webhook.signature_valid, webhook.payload) == ("delivered", valid, body)
            assert receiver.got[-1].body == body
        assert [each.signature_valid for each in await relay.webhooks.list()] == [True, False]
        await relay.endpoints.update("shop", bad_signature="refuse")
        assert (await post(relay, "shop", b"{}", github(b"{}", "wrong"))).status == 401
        assert len(await relay.webhooks.list()) == 2


async def test_h19_what_cannot_be_received_is_refused_by_status(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver, max_body="1KiB") as relay:
        await add(relay, receiver)
        assert (await post(relay, "shop", b"x" * 1025)).status == 413
        assert (await post(relay, "shop", b"x" * 1025, [("Content-Length", "1")])).status == 413, "the length may lie"
        assert (await post(relay, "nobody")).status == 404
        for method in ("GET", "PUT", "DELETE"):
            told = await post(relay, "shop", method=method)
            assert (told.status, told.headers["allow"]) == (405, "POST")
        assert len(await relay.webhooks.list()) == 0
        assert (await post(relay, "shop", b"x" * 1024)).status == 200


@pytest.mark.parametrize("fate", ["delivered", "failed", "dead_letter"])
async def test_h21_h28_the_late_answer_of_a_worker_that_lost_its_lease_changes_nothing(lab: Lab, fate: str) -> None:
    """It says the opposite of what the other worker heard."""
    hold = Hold(then=422 if fate == "delivered" else 200)
    answers: dict[str, Step] = {"delivered": 200, "failed": 422, "dead_letter": Answer(503, {"Retry-After": "86400"})}
    async with receiving(lab, hold, answers[fate]) as receiver:
        relay, faulty, task = await doomed(lab, receiver)
        seen = Seen(relay.app)
        await add(relay, receiver, max_age="1h")
        (hook,) = await put(relay, "a")
        await lab.until(lambda: hold.reached)
        began = lab.clock.monotonic()
        for verb in ("lease", "extend", "reclaim", "settle"):
            faulty.fail(verb)
        async with delivering(lab, receiver) as other:
            await lab.until(lambda: len(receiver.got) == 2)
            assert lab.clock.monotonic() - began >= 60_000, "not before the claim of the first has expired"
            assert receiver.ids == [hook, hook]
            await lab.quiet()
            if fate == "dead_letter":
                lab.clock.advance("61m")
                await lab.drive(other.maintain())
            webhook = await ended(lab, other, hook)
            assert (webhook.status, webhook.attempts) == (fate, 2)
            before = await other.app.history(hook)
            hold.release()
            faulty.heal()
            await lab.until(lambda: hook in [each.id for each in seen.of(SettleRefused)])
            assert [each.delivery for each in seen.of(SettleRefused) if each.id == hook] == [1]
            await lab.pass_time("1m")
            assert (await other.webhooks.get(hook), await other.app.history(hook)) == (webhook, before)
            assert [each.ending for each in before.attempts[:1]] == [Ending.CRASHED]
        await lab.drive(relay.close())
        await lab.drive(task)
        assert len(receiver.got) == 2


async def test_h28_two_workers_share_an_endpoint_one_request_at_a_time(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay, delivering(lab, receiver):
        await add(relay, receiver)
        holds = [Hold() for _ in range(6)]
        receiver.script.extend(holds)
        ids = await put(relay, *"abcdef")
        for number, hold in enumerate(holds, 1):
            await lab.until(partial(getattr, hold, "reached"))
            await lab.pass_time("3s")
            assert len(receiver.got) == number
            hold.release()
        await ended(lab, relay, ids[-1])
        assert receiver.bodies == [*"abcdef"]


@pytest.mark.parametrize("verb", ["put", "document"])
async def test_h31_a_store_that_fails_is_no_success_for_the_sender(lab: Lab, verb: str) -> None:
    async with receiving(lab) as receiver:
        faulty = FaultyStore(Shared(lab.store, lab.clock))
        async with opened(lab, receiver, store=faulty) as relay:
            await add(relay, receiver)
            faulty.fail(verb)
            told = await lab.drive(post(relay, "shop", b"a"))
            assert (told.status, told.body) == (503, {"error": "the store does not answer"})
            assert int(told.headers["retry-after"]) > 0
            faulty.heal()
            assert len(await relay.webhooks.list()) == 0
            assert (await post(relay, "shop", b"a")).status == 200


async def test_h31_an_endpoint_without_room_says_so(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver, capacity=2) as relay:
        await add(relay, receiver)
        ids = await put(relay, *"ab")
        told = await post(relay, "shop", b"c")
        assert (told.status, told.body) == (503, {"error": "the queue is full"})
        async with running(lab, relay):
            await ended(lab, relay, ids[-1])
            assert (await post(relay, "shop", b"c")).status == 200


@DURABLE
async def test_h32_a_crash_after_the_answer_sends_it_again_under_the_same_id(lab: Lab) -> None:
    async with receiving(lab) as receiver:
        relay, faulty, task = await doomed(lab, receiver)
        await add(relay, receiver)
        held = faulty.hold("settle")
        (hook,) = await put(relay, "a")
        await lab.until(held.reached.is_set)
        assert len(receiver.got) == 1
        faulty.crashed = True
        held.release()
        await crash(lab, relay, faulty, task)
        assert (await lab.item(hook)).state is State.LEASED
        async with delivering(lab, receiver) as relay:
            webhook = await ended(lab, relay, hook)
            history = await relay.app.history(hook)
        assert (webhook.status, webhook.attempts) == ("delivered", 2)
        assert [(each.id, each.header("Idempotency-Key"), each.attempt) for each in receiver.got] == [
            (hook, hook, 1),
            (hook, hook, 2),
        ]
        assert receiver.seconds[1] >= 60
        assert [(each.number, each.ending) for each in history.attempts] == [(1, Ending.CRASHED), (2, Ending.DONE)]


@DURABLE
async def test_h32_no_number_of_crashes_ends_a_webhook(lab: Lab) -> None:
    async with receiving(lab) as receiver:
        async with opened(lab, receiver) as relay:
            await add(relay, receiver)
            (hook,) = await put(relay, "a")
        for _ in range(5):
            relay, faulty, task = await doomed(lab, receiver)
            hold = Hold()
            receiver.script.append(hold)
            await lab.until(partial(getattr, hold, "reached"))
            await crash(lab, relay, faulty, task)
            hold.release()
        async with delivering(lab, receiver) as relay:
            webhook = await ended(lab, relay, hook)
        assert (webhook.status, webhook.attempts, {each.id for each in receiver.got}) == ("delivered", 6, {hook})
