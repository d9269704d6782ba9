"""Endpoints: their status, their settings, what becomes of webhooks when they change or go."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from redrive.core.instants import moment
from redrive.errors import AppClosed, ConfigError, Conflict, NotFound, StoreUnavailable
from redrive.testing.faults import FaultyStore
from redrive.webhooks import Maintained
from tests.support.lab import Lab, Shared, lab, memory_lab
from tests.webhooks.kit import (
    DAY,
    Hold,
    add,
    delivering,
    ended,
    next_attempt,
    opened,
    post,
    put,
    receiving,
    relay_on,
    running,
)

__all__ = ["lab", "memory_lab"]


async def test_failing_for_long_disables_and_enabling_drains_in_order(lab: Lab) -> None:
    async with receiving(lab, then=500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, disable_after="1d")
        hooks = await put(relay, *"abc")
        await lab.quiet()
        while (await relay.endpoints.get("shop")).status == "active":
            await next_attempt(lab, receiver, hooks[0])
        assert DAY <= receiver.seconds[-1] <= DAY + 3600
        endpoint = await relay.endpoints.get("shop")
        assert (endpoint.status, endpoint.status_reason[:24]) == ("disabled", "every attempt failed for")
        assert (await post(relay)).status == 200
        lab.clock.advance("30d")
        assert await relay.maintain() == Maintained(), "its age stands still"
        sent = len(receiver.got)
        await lab.pass_time("2m")
        assert len(receiver.got) == sent
        receiver.then = 200
        await relay.endpoints.enable("shop", reason="they mended it")
        await ended(lab, relay, hooks[-1])
        assert receiver.bodies[sent:][:3] == [*"abc"]
        assert (await relay.endpoints.get("shop")).failing_since is None
        entries = [each for each in await relay.app.audit.list() if b"webhook_endpoint_disabled" in each.body]
        assert [each.reason for each in entries] == [endpoint.status_reason], "noted once"


async def test_a_success_in_between_begins_the_count_anew(lab: Lab) -> None:
    async with receiving(lab, then=422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, disable_after="10h")
        for number in range(30):
            receiver.then = 200 if number % 8 == 7 else 422
            await ended(lab, relay, *await put(relay, "a"))
            lab.clock.advance("1h")
        assert (await relay.endpoints.get("shop")).status == "active"


async def test_failures_days_apart_disable_nothing(lab: Lab) -> None:
    async with receiving(lab, then=422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, disable_after="4d")
        for _ in range(5):
            await ended(lab, relay, *await put(relay, "a"))
            lab.clock.advance("2d")
        assert (await relay.endpoints.get("shop")).status == "active"


async def test_a_mute_while_a_request_is_on_its_way(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay, opened(lab, receiver) as other:
        await add(relay, receiver)
        hold = Hold(then=500)
        receiver.script.append(hold)
        hooks = await put(relay, *"ab")
        await lab.until(partial(getattr, hold, "reached"))
        await other.endpoints.mute("shop")
        hold.release()
        await lab.pass_time("5m")
        assert receiver.bodies == ["a"]
        assert (await relay.webhooks.get(hooks[0])).attempts == 1
        hooks += await put(relay, "c")  # as it was a moment ago: muted
        await other.endpoints.unmute("shop")
        began = lab.clock.monotonic()
        await ended(lab, relay, hooks[-1])
        assert lab.clock.monotonic() - began < 5_000, "at once"
        assert receiver.bodies == [*"aabc"]


async def test_a_deleted_endpoint_cancels_what_waits_and_loses_nothing(lab: Lab) -> None:
    async with receiving(lab, 422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (failed,) = await put(relay, "failed")
        await ended(lab, relay, failed)
        hold = Hold()
        receiver.script.append(hold)
        on_its_way, *waiting = await put(relay, "way", *map(str, range(5)))
        await lab.until(partial(getattr, hold, "reached"))
        late = await relay.endpoints.get("shop")
        await relay.endpoints.delete("shop", reason="they left")
        hold.release()
        assert (await ended(lab, relay, on_its_way)).status == "delivered"
        assert {(await relay.webhooks.get(each)).status for each in waiting} == {"cancelled"}
        assert (await post(relay)).status == 404
        with pytest.raises(NotFound):
            await relay.endpoints.get("shop")
        stray = await relay.app.enqueue(late.queue, b"\x81\xa4body\xc4\x05stray")
        webhook = await ended(lab, relay, stray)
        assert webhook.status == "failed"
        assert "the endpoint was deleted" in (webhook.error_message or "")
        assert (await relay.webhooks.get(failed)).status == "failed"
        await add(relay, receiver)
        await relay.webhooks.replay([failed, stray], reason="it is back")
        for hook in (failed, stray):
            assert (await ended(lab, relay, hook)).status == "delivered"
        assert sorted(receiver.bodies) == ["failed", "failed", "stray", "way"]


async def test_what_comes_for_a_deleted_endpoint_of_hubs_does_not_wait_for_ever(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        endpoint = (await relay.endpoints.create(id="inside", via="hub")).endpoint
        await relay.endpoints.delete("inside")
        stray = await relay.app.enqueue(endpoint.queue, b"\x81\xa4body\xc4\x05stray")
        lab.clock.advance("7d")
        assert await relay.maintain() == Maintained()
        lab.clock.advance("1s")
        assert await relay.maintain() == Maintained(dead_lettered=1)
        assert (await relay.webhooks.get(stray)).status == "dead_letter"


async def test_maintenance_mends_settings_that_were_not_written(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with receiving(lab) as receiver, opened(lab, receiver, store=faulty) as relay:
        await add(relay, receiver)
        for change, status, word in ((relay.endpoints.mute, "muted", True), (relay.endpoints.unmute, "active", False)):
            faulty.fail("configure", times=1)
            with pytest.raises(StoreUnavailable):
                await change("shop")
            assert (await relay.endpoints.get("shop")).status == status
            assert (await relay.app.tally()).row("webhook:shop").paused is not word
            await relay.maintain()
            assert (await relay.app.tally()).row("webhook:shop").paused is word
        faulty.fail("configure", times=1)
        with pytest.raises(StoreUnavailable):
            await add(relay, receiver, "new", order="none", concurrency=7)
        await relay.maintain()
        assert (await relay.app.tally()).row("webhook:new").settings.max_running == 7


async def test_maintenance_leaves_what_an_operator_paused(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        await relay.app.pause("webhook:shop", reason="an incident")
        await relay.maintain()
        row = (await relay.app.tally()).row("webhook:shop")
        assert (row.paused, row.paused_reason) == (True, "an incident")
        await relay.endpoints.enable("shop")
        assert not (await relay.app.tally()).row("webhook:shop").paused


async def test_two_who_change_one_endpoint_agree_with_its_queue(lab: Lab) -> None:
    """The one who wrote the document first is the last to write to the queue."""
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with receiving(lab) as receiver, opened(lab, receiver, store=faulty) as slow, opened(lab, receiver) as quick:
        await add(slow, receiver)
        for slowly, quickly, paused in (("mute", "enable", False), ("enable", "disable", True)):
            held = faulty.hold("configure")
            changing = asyncio.create_task(getattr(slow.endpoints, slowly)("shop"))
            await lab.until(held.reached.is_set)
            await getattr(quick.endpoints, quickly)("shop")
            held.release()
            await lab.drive(changing)
            assert ((await quick.endpoints.get("shop")).status != "active") is paused
            assert (await quick.app.tally()).row("webhook:shop").paused is paused


async def test_the_statistics_of_an_endpoint(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(lab, 200, 422) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        assert (await relay.endpoints.stats("shop")).success_rate is None
        hooks = await put(relay, *"ab")
        async with running(lab, relay):
            await ended(lab, relay, hooks[-1])
        await put(relay, "c")
        lab.clock.advance("8d")
        await relay.maintain()
        received = moment(lab.clock.now())
        await put(relay, "d")
        lab.clock.advance("1m")
        await put(relay, "e")
        lab.refuse_members(monkeypatch)
        stats = await relay.endpoints.stats("shop")
        assert (stats.pending, stats.delivered, stats.failed, stats.dead_letter) == (2, 1, 1, 1)
        assert (stats.success_rate, stats.oldest_pending_at) == (1 / 3, received)
        await relay.app.letters.discard(hooks[-1], reason="seen")
        assert (await relay.endpoints.stats("shop")).failed == len(await relay.webhooks.list(status="failed")) == 0


async def test_an_operators_settings_of_the_family_hold_for_what_an_endpoint_leaves_open(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        await add(relay, receiver, "own", rate="5/s")
        await relay.app.configure("webhook:*", rate="1/min", keep="1d", reason="a storm")
        plain, own = [await lab.store.settings(f"webhook:{name}") for name in ("shop", "own")]
        assert (plain.rate is None, plain.rate == own.rate, plain.order, own.order) == (False, False, "skip", "skip")
        assert plain.keep == own.keep == DAY * 1000


async def test_ids_are_unique_and_secrets_are_shown_once(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        made = await relay.endpoints.create(
            receiver.url, id="shop", events=["*"], provider="github", secret=["hush-hush-1", "hush-hush-2"]
        )
        assert made.secret.startswith("whsec_")
        with pytest.raises(Conflict):
            await add(relay, receiver)
        kept = [document.body for document in await lab.store.documents("webhook.endpoint")]
        assert not any(secret in body for secret in (made.secret.encode(), b"hush-hush") for body in kept)
        assert "hush-hush" not in repr(await relay.endpoints.get("shop"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "a:b"},
        {"via": "mail"},
        {"order": "any"},
        {"concurrency": 0},
        {"rate": "fast"},
        {"retry": "usual"},
        {"max_age": 0},
        {"window": "never"},
        {"headers": {"Host": "x"}},
        {"headers": {"X-A": "b\r\nc"}},
        {"breaker": "yes"},
        {"disable_after": -1},
        {"colour": "red"},
        {"retry_on": [200]},
        {"fail_on": ["2xx"]},
        {"retry_on": ["1xx"]},
        {"concurrency": 5},
    ],
)
async def test_what_cannot_be_is_refused_by_name(memory_lab: Lab, wrong: dict[str, Any]) -> None:
    async with receiving(memory_lab) as receiver, opened(memory_lab, receiver) as relay:
        with pytest.raises(ConfigError) as refused:
            await relay.endpoints.create(receiver.url, **wrong)
        assert [refused.value.field] == list(wrong)
        assert await relay.endpoints.list() == ()


async def test_what_verifies_is_refused_by_the_name_of_its_option(memory_lab: Lab) -> None:
    wrongs: list[tuple[str, dict[str, Any]]] = [
        ("secret", {"provider": "github"}),
        ("secret", {"provider": "telegram", "secret": "a b"}),
        ("provider", {"provider": "gitub"}),
        ("verification.headr", {"provider": "hmac", "secret": "s", "verification": {"headr": "X"}}),
        ("verification.header", {"provider": "hmac", "secret": "s"}),
        ("verification.tolerance", {"provider": "stripe", "secret": "s", "verification": {"tolerance": 0}}),
    ]
    async with receiving(memory_lab) as receiver, opened(memory_lab, receiver) as relay:
        for field, options in wrongs:
            with pytest.raises(ConfigError) as refused:
                await relay.endpoints.create(receiver.url, **options)
            assert (refused.value.field, str(refused.value).count(f"{field}: ")) == (field, 1)
        await add(relay, receiver)
        with pytest.raises(ConfigError, match="add order='none'"):
            await relay.endpoints.update("shop", concurrency=5)
        await relay.endpoints.update("shop", concurrency=5, order="none")
        assert (await relay.endpoints.update("shop", order="skip")).concurrency == 5


async def test_a_relay_that_cannot_open_lets_go_of_what_it_has(lab: Lab) -> None:
    """The detector of leaks would find its connections."""
    async with receiving(lab) as receiver:
        faulty = FaultyStore(Shared(lab.store, lab.clock))
        faulty.fail("write_documents")
        relay = relay_on(lab, receiver, faulty)
        with pytest.raises(StoreUnavailable):
            await lab.drive(relay.open())
        with pytest.raises(AppClosed):
            await relay.app.tally()
