"""What becomes of webhooks beside the rows: without order, behind a breaker, under a policy of the endpoint, published,
and while the store or the endpoint changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from redrive.core.instants import moment
from redrive.core.item import Ending, NewItem
from redrive.core.states import State
from redrive.errors import ConfigError, NotFound, QueueFull
from redrive.testing.faults import FaultyStore
from redrive.webhooks import Notice, delete_old_webhooks, get_pending_webhooks, maintenance, replay_webhook, verify
from tests.support.lab import Lab, Shared, lab
from tests.webhooks.kit import (
    Answer,
    Hold,
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


async def test_without_order_so_many_go_at_once(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, order="none", concurrency=3)
        holds = [Hold() for _ in range(5)]
        receiver.script.extend(holds)
        hooks = await put(relay, *"abcde")
        await lab.until(partial(getattr, holds[2], "reached"))
        await lab.pass_time("10s")
        assert len(receiver.got) == 3
        holds[1].release()
        await lab.until(partial(getattr, holds[3], "reached"))
        await lab.pass_time("10s")
        assert len(receiver.got) == 4
        for hold in holds:
            hold.release()
        assert [(await ended(lab, relay, hook)).status for hook in hooks] == ["delivered"] * 5


async def test_without_order_one_that_fails_holds_up_nothing(lab: Lab) -> None:
    async with receiving(lab, 500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, order="none", concurrency=1)
        await ended(lab, relay, (await put(relay, *"abc"))[0])
        assert receiver.bodies == [*"abca"]


async def test_a_rate_spreads_them(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, rate="2/10s")
        hooks = await put(relay, *"abcdef")
        await ended(lab, relay, hooks[-1])
        assert receiver.bodies == [*"abcdef"]
        assert [round(each) for each in receiver.seconds] == [0, 5, 10, 15, 20, 25]
        assert (await relay.webhooks.get(hooks[-1])).attempts == 1


async def test_a_breaker_leaves_a_failing_endpoint_in_peace(lab: Lab) -> None:
    async with receiving(lab, then=503) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver, order="none", concurrency=1, breaker=True)
        hooks = await put(relay, *map(str, range(20)))
        async with running(lab, relay):
            await lab.pass_time("25s")
            assert len(receiver.got) < 15, "20 webhooks and their retries, without it"
            assert [(each.name, each.state) for each in await relay.app.gates()] == [("webhook:shop", "open")]
            receiver.then = 200
            for hook in hooks:
                await ended(lab, relay, hook)
            assert [each.state for each in await relay.app.gates()] == ["closed"]
        assert set(Counter(receiver.ids)) == set(hooks)


async def test_a_breaker_does_not_hear_of_what_the_endpoint_refuses(lab: Lab) -> None:
    async with receiving(lab, then=422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, breaker=True)
        hooks = await put(relay, *map(str, range(20)))
        await ended(lab, relay, hooks[-1])
        assert receiver.seconds[-1] < 1
        assert [each.state for each in await relay.app.gates()] == ["closed"]


async def test_a_breaker_does_not_ration_retries(lab: Lab) -> None:
    async with receiving(lab, 500, 500, 500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, breaker=True)
        await ended(lab, relay, *await put(relay, "a"))
        assert receiver.seconds == [0, 1, 3, 7]


async def test_the_policy_of_the_endpoint_is_read_when_an_attempt_fails(lab: Lab) -> None:
    async with receiving(lab, then=500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        await lab.until(lambda: len(receiver.got) == 2)
        await relay.endpoints.update("shop", retry={"backoff": {"kind": "constant", "base": "30s"}, "max_attempts": 4})
        webhook = await ended(lab, relay, hook)
        assert (webhook.status, webhook.reason, receiver.seconds) == ("failed", "max_attempts", [0, 1, 3, 33])
        await relay.endpoints.update("shop", retry={"backoff": {"kind": "never"}})
        await lab.pass_time("2s")
        receiver.then = Answer(503, {"Retry-After": "5"})
        webhook = await ended(lab, relay, *await put(relay, "b"))
        assert (webhook.status, webhook.reason, webhook.attempts) == ("failed", "no_retry", 1)
        await relay.endpoints.update("shop", retry=None)
        await lab.pass_time("2s")
        receiver.then = 200
        receiver.script.append(503)
        assert (await ended(lab, relay, *await put(relay, "c"))).attempts == 2


async def test_those_that_wait_go_where_the_endpoint_is_now(lab: Lab) -> None:
    async with receiving(lab, then=500) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        hooks = await put(relay, *"ab")
        await lab.until(lambda: len(receiver.got) == 2)
        receiver.then = 200
        await relay.endpoints.update("shop", f"{receiver.url}/new?team=1", headers={"X-Team": "billing"})
        await ended(lab, relay, hooks[-1])
        assert [each.path for each in receiver.got[2:]] == ["/new?team=1"] * 2
        assert {each.header("X-Team") for each in receiver.got[2:]} == {"billing"}


async def test_an_endpoint_that_becomes_ordered_sends_one_at_a_time(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver, order="none")
        await put(relay, *"abc")
        await relay.endpoints.update("shop", order="skip")
        hooks = await put(relay, *"DEF")
        receiver.script.extend([500, 200, 200, 500])
        hold = Hold()
        receiver.script.append(hold)
        async with running(lab, relay):
            await lab.until(partial(getattr, hold, "reached"))
            sent = len(receiver.got)
            await lab.pass_time("10s")
            assert len(receiver.got) == sent == 5, "one is on its way"
            hold.release()
            await ended(lab, relay, hooks[-1])
        assert sorted(receiver.bodies) == [*"DDEFaabc"]
        assert [body for body in receiver.bodies if body.isupper()] == [*"DDEF"]


async def test_headers_and_query_are_passed_on(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, headers={"X-Own": "ours", "X-Team": "billing"})
        came = [("X-Two", "1"), ("X-Two", "2"), ("x-team", "theirs"), ("Connection", "X-Hop, close"), ("X-Hop", "h")]
        came += [("Te", "trailers"), ("X-Redrive-Attempt", "77"), ("Host", "edge.example")]
        told = await post(relay, "shop", b"a", came, query="a=1&b=%20")
        await ended(lab, relay, told.body["id"])
        (got,) = receiver.got
        assert got.path == "/shop?a=1&b=%20"
        assert [value for name, value in got.headers if name.lower() == "x-two"] == ["1", "2"]
        assert (got.header("X-Team"), got.header("X-Own"), got.attempt) == ("billing", "ours", 1)
        assert (got.header("X-Hop"), got.header("Te"), got.header("Content-Type")) == (None, None, "application/json")
        assert got.header("Host") == receiver.url.removeprefix("http://")


async def test_events_are_published_to_all_who_subscribe_once(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        secret = {}
        for name, events in (("all", ["*"]), ("orders", ["order.*"]), ("users", ["user.*"])):
            made = await relay.endpoints.create(f"{receiver.url}/{name}", id=name, events=events)
            secret[name] = made.secret
        await add(relay, receiver, "none")
        hooks = await relay.publish("order.paid", {"n": 1}, id="event-1")
        assert hooks == ["event-1_all", "event-1_orders"]
        assert await relay.publish("order.paid", {"n": 1}, id="event-1") == hooks
        assert await relay.publish("nobody.cares", {}, id="e2") == ["e2_all"]
        receiver.by_path["/orders"] = 500
        rotated = await relay.endpoints.rotate_secret("orders")
        async with running(lab, relay):
            await lab.until(lambda: hooks[1] in receiver.ids)
            del receiver.by_path["/orders"]
            for hook in (*hooks, "e2_all"):
                assert (await ended(lab, relay, hook)).status == "delivered"
            await ended(lab, relay, await relay.send_test("users"))
        assert Counter(receiver.ids[:-1]) == {hooks[0]: 1, hooks[1]: 2, "e2_all": 1}
        for got in receiver.got:
            keys = [secret[got.path[1:]]] + ([rotated] if got.path == "/orders" else [])
            for key in keys:
                assert verify([key], got.headers, got.body, now_seconds=lab.clock.now() / 1000) == got.id
        assert b"redrive.test" in receiver.got[-1].body
        tried = [each for each in receiver.got if each.id == hooks[1]]
        assert len({each.header("webhook-timestamp") for each in tried}) == 2, "a new one for each attempt"


async def test_a_publish_without_room_writes_nothing(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver, capacity=3) as relay:
        for name in ("one", "two"):
            await relay.endpoints.create(f"{receiver.url}/{name}", id=name, events=["*"])
        await relay.publish("a.b", 1)
        with pytest.raises(QueueFull):
            await relay.publish("a.b", 2)
        assert len(await relay.webhooks.list()) == 2


async def test_an_id_of_an_event_can_be_signed_and_replayed(lab: Lab) -> None:
    """It is no filter: `order:7` would be one."""
    async with receiving(lab, then=422) as receiver, opened(lab, receiver) as relay:
        for wrong in ("with.dot", "é", "a b", "x" * 64, "", "order:7", "-a", *[f"a{sign}b" for sign in '=*()"<>,;']):
            with pytest.raises(ConfigError, match="A-Z a-z 0-9 _") as refused:
                await relay.publish("a.b", 1, id=wrong)
            assert refused.value.field == "id"
        await add(relay, receiver, events=["*"])
        ids = ["order_7/a+b@c~d-e_shop", f"{'x' * 63}_shop"]
        for each in ids:
            assert await relay.publish("a.b", 1, id=each.removesuffix("_shop")) == [each]
        async with running(lab, relay):
            await ended(lab, relay, ids[-1])
        for each in ids:
            assert (await relay.webhooks.replay(each, reason="x")).changed == (each,)


async def test_what_was_delivered_stays_so_whatever_the_store_says(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with receiving(lab, 500) as receiver, delivering(lab, receiver, store=faulty) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        await lab.until(lambda: len(receiver.got) == 1)
        await lab.quiet()
        assert (await relay.endpoints.get("shop")).failing_since is not None
        faulty.fail("write_documents")
        webhook = await ended(lab, relay, hook)
        faulty.heal()
        assert (webhook.status, webhook.attempts, len(receiver.got)) == ("delivered", 2, 2)


async def test_an_answer_is_judged_also_without_the_store(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    told: list[Notice] = []
    async with (
        receiving(lab, then=422) as receiver,
        delivering(lab, receiver, store=faulty, notify=told.append) as relay,
    ):
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        hold = Hold(then=422)
        receiver.script.append(hold)
        await lab.until(partial(getattr, hold, "reached"))
        for verb in ("document", "put"):
            faulty.fail(verb)
        hold.release()
        assert (await ended(lab, relay, hook)).status == "failed"
        faulty.heal()
        lab.clock.advance("1h")
        await lab.until(lambda: bool(told))
        assert ([each.webhook_id for each in told], len(receiver.got)) == ([hook], 1)


async def test_an_attempt_that_was_not_made_is_not_charged(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with receiving(lab) as receiver, opened(lab, receiver, store=faulty) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        lab.clock.advance("2s")
        faulty.fail("document")
        async with running(lab, relay):
            await lab.pass_time("20s")
            assert receiver.got == []
            faulty.heal()
            webhook = await ended(lab, relay, hook)
        assert (webhook.status, webhook.attempts, receiver.got[0].attempt, len(receiver.got)) == ("delivered", 1, 1, 1)


async def test_a_crash_after_some_died_of_age_loses_no_notice(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    told: list[Notice] = []
    async with receiving(lab) as receiver:
        relay = relay_on(lab, receiver, faulty, notify=told.append)
        await lab.drive(relay.open())
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        lab.clock.advance("8d")
        held = faulty.hold("amend", "after")
        maintaining = asyncio.create_task(relay.maintain())
        await lab.until(held.reached.is_set)
        faulty.crashed = True
        held.release()
        await crash(lab, relay, faulty, maintaining)
        lab.clock.advance("1d")
        async with delivering(lab, receiver, notify=told.append) as relay:
            await lab.until(lambda: bool(told))
            assert [(each.webhook_id, each.status) for each in told] == [(hook, "dead_letter")]


async def test_a_failure_that_came_to_nothing_is_not_told(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    told: list[Notice] = []
    refusal = Hold(then=422)
    async with receiving(lab, refusal) as receiver:
        relay = relay_on(lab, receiver, faulty, notify=told.append)
        await lab.drive(relay.open())
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        task = asyncio.create_task(relay.run())
        await lab.until(partial(getattr, refusal, "reached"))
        held = faulty.hold("settle")
        refusal.release()
        await lab.until(held.reached.is_set)
        faulty.crashed = True
        held.release()
        await crash(lab, relay, faulty, task)
        async with delivering(lab, receiver, notify=told.append) as relay:
            await ended(lab, relay, hook)
            await lab.pass_time("2m")
            webhook = await relay.webhooks.get(hook)
            assert (webhook.status, webhook.attempts, webhook.notification_sent) == ("delivered", 2, False)
        assert told == []


async def test_what_is_no_webhook_becomes_a_letter_and_is_told(lab: Lab) -> None:
    told: list[Notice] = []
    async with receiving(lab) as receiver, delivering(lab, receiver, notify=told.append) as relay:
        await add(relay, receiver)
        hook = await relay.app.enqueue("webhook:shop", b"nonsense")
        await lab.until(lambda: bool(told))
        assert [(each.webhook_id, each.status) for each in told] == [(hook, "failed")]
        item = await relay.app.get(hook)
        assert item.state is State.DEAD
        assert item.letter is not None
        assert "no webhook" in item.letter.failure.text


async def test_a_worker_that_stops_gives_back_what_it_has(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        hold = Hold()
        receiver.script.append(hold)
        (hook,) = await put(relay, "a")
        async with running(lab, relay):
            await lab.until(partial(getattr, hold, "reached"))
        hold.release()
        item = await lab.item(hook)
        assert (item.state, item.attempt, item.errors) == (State.READY, 0, 0)
        webhook = await relay.webhooks.get(hook)
        assert (webhook.status, webhook.attempts, webhook.last_attempt_at) == ("pending", 0, None)
        async with running(lab, relay):
            await ended(lab, relay, hook)
        assert [each.ending for each in (await relay.app.history(hook)).attempts] == [Ending.RELEASED, Ending.DONE]


async def test_recover_sends_again_what_failed_since(lab: Lab) -> None:
    async with receiving(lab, then=422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        (old,) = await put(relay, "old")
        await ended(lab, relay, old)
        lab.clock.advance("3h")
        since = moment(lab.clock.now())
        hooks = await put(relay, *"ab")
        await ended(lab, relay, hooks[-1])
        receiver.then = 200
        assert await relay.endpoints.recover("shop", since=since) == 2
        for hook in hooks:
            assert (await ended(lab, relay, hook)).status == "delivered"
        assert await relay.endpoints.recover("shop", since="1h") == 0
        assert await relay.endpoints.recover("shop", since="4h") == 1
        await ended(lab, relay, old)
        assert receiver.bodies[:3] == ["old", "a", "b"]
        assert receiver.bodies[3:] == ["a", "b", "old"]


@pytest.mark.parametrize("which", ["filter", "page", "ids of a list"])
async def test_replayed_webhooks_go_in_the_order_in_which_they_died(lab: Lab, which: str) -> None:
    async with receiving(lab, then=422) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        hooks = await put(relay, *"abcd")
        async with running(lab, relay):
            await ended(lab, relay, hooks[-1])
        named: dict[str, Any] = {
            "filter": "queue:webhook:shop",
            "page": await relay.app.letters.find("queue:webhook:shop"),
            "ids of a list": [each.id for each in await relay.webhooks.list(status="failed")],
        }
        assert (await relay.webhooks.replay(named[which], reason="mended")).changed == tuple(hooks)
        receiver.then = 200
        async with running(lab, relay):
            await ended(lab, relay, hooks[-1])
        assert receiver.bodies[4:] == [*"abcd"]


async def test_what_died_of_age_is_replayed_in_the_order_of_its_receipt(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PAGE", 2)
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        hooks = await put(relay, *"abcde")
        lab.clock.advance("8d")
        expire = type(relay.app).expire

        async def expire_and_pass_time(*args: Any, **options: Any) -> Any:
            lab.clock.advance("1s")
            return await expire(*args, **options)

        monkeypatch.setattr(type(relay.app), "expire", expire_and_pass_time)
        assert (await relay.maintain()).dead_lettered == 5
        assert await relay.endpoints.recover("shop", since="1h") == 5
        async with running(lab, relay):
            await ended(lab, relay, hooks[-1])
        assert receiver.bodies == [*"abcde"]


async def test_a_replay_is_about_webhooks_only(lab: Lab) -> None:
    async with receiving(lab, then=422) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        hooks = await put(relay, *"ab")
        await ended(lab, relay, hooks[-1])
        (other,) = (await lab.store.put([NewItem("mail-1", "emails", b"{}")])).added
        await relay.app.expire([other], reason="for this test")
        assert (await relay.webhooks.replay("disposition:open OR died<1h", reason="x")).changed == tuple(hooks)
        done = await replay_webhook(relay, other)
        assert [(each.id, each.reason) for each in done.skipped] == [
            (other, "it is an item of queue emails, not a webhook")
        ]
        done = await relay.webhooks.replay([other, "nothing"], reason="x")
        assert {each.id for each in done.skipped} == {other, "nothing"}
        with pytest.raises(ConfigError, match="empty"):
            await relay.webhooks.replay(" ", reason="x")
        assert (await lab.item(other)).state is State.DEAD


async def test_a_content_type_of_the_endpoint_is_sent_once(lab: Lab) -> None:
    own = "application/cloudevents+json"
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver, headers={"content-type": own}, events=["*"])
        received = [
            (await post(relay, "shop", b"a", headers)).body["id"] for headers in ([], [("Content-Type", "a/b")])
        ]
        for hook in (*received, *await relay.publish("order.paid", 1)):
            await ended(lab, relay, hook)
            types = [value for name, value in receiver.got[-1].headers if name.lower() == "content-type"]
            assert types == [own]


async def test_a_list_says_less_of_each_than_get(lab: Lab) -> None:
    async with receiving(lab, then=422) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        await put(relay, *"ab")
        listed = [(each.notification_sent, each.blocked_by) for each in await relay.webhooks.list("shop")]
        assert listed == [(None, None)] * 2
        with pytest.raises(NotFound, match="no endpoint 'shp'"):
            await relay.webhooks.list("shp")
        await add(relay, receiver, "new")
        assert len(await relay.webhooks.list("new")) == 0


async def test_pending_webhooks_are_those_that_may_be_sent_now(lab: Lab) -> None:
    async with receiving(lab, 500) as receiver, opened(lab, receiver) as relay:
        for name in ("first", "muted", "tried"):
            await add(relay, receiver, name)
        (tried,) = await put(relay, "a", endpoint="tried")
        async with running(lab, relay):
            await lab.until(lambda: len(receiver.got) == 1)
        await put(relay, "b", endpoint="muted")
        await relay.endpoints.mute("muted")
        (first, _) = await put(relay, *"cd", endpoint="first")
        lab.clock.advance("900ms")
        assert [each.id for each in await get_pending_webhooks(relay)] == [first], "the first of its order"
        lab.clock.advance("1s")
        assert [each.id for each in await get_pending_webhooks(relay)] == [tried, first], "its wait is over"
        assert [each.id for each in await get_pending_webhooks(relay, limit=1)] == [tried]


async def test_old_webhooks_are_deleted_by_the_times_of_the_seed_on_demand(lab: Lab) -> None:
    async with receiving(lab, 422) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "a")
        async with running(lab, relay):
            await ended(lab, relay, hook)
        lab.clock.advance("8d")
        assert [await delete_old_webhooks(relay), len(await relay.webhooks.list())] == [1, 0]
