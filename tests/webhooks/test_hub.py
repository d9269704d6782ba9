"""Hubs: what they deliver, what they are given, and whose results count."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any

import pytest

from redrive.core.item import Ending
from redrive.core.states import State
from redrive.webhooks import hub as hub_module
from redrive.webhooks.hub import LARGEST
from redrive.webhooks.hub_client import ANSWERS
from tests.support.lab import lab
from tests.webhooks.hub_kit import (
    Door,
    Kit,
    Target,
    edge,
    hub,
    kit,
    lab_kit,
    patiently,
    polling,
    raw,
    shop,
)
from tests.webhooks.kit import KEYS

__all__ = ["kit", "lab", "lab_kit", "shop"]


async def test_a_hub_delivers_in_order(kit: Kit, shop: Target) -> None:
    await kit.endpoint(f"{shop.url}/in?key=1")
    ids = await kit.receive(b"1", b"2", b"3", query="a=b", headers=(("X-Shop", "7"),))
    async with hub(kit, await kit.token()):
        await kit.ended(*ids)
    assert shop.ids == ids
    first = shop.seen[0]
    assert (first.path, first.query, first.body, first.headers["x-shop"]) == ("/in", "key=1&a=b", b"1", "7")
    assert (first.headers["idempotency-key"], first.attempt) == (ids[0], "1")
    (attempt,) = (await kit.history(ids[0])).attempts
    assert attempt.output.startswith(b"HTTP 200")


@pytest.mark.parametrize("via", ["direct", "hub"])
async def test_h20_a_target_that_takes_30_s_gets_one_request(kit: Kit, shop: Target, via: str) -> None:
    door = Door(shop)
    async with contextlib.AsyncExitStack() as stack:
        if via == "hub":
            await kit.endpoint(shop.url)
            await stack.enter_async_context(hub(kit, await kit.token()))
        else:
            await kit.relay.endpoints.create(shop.url, id="shop")
            run = asyncio.create_task(kit.relay.run())
            stack.push_async_callback(lambda: asyncio.gather(kit.relay.stop(), run))
        (hook,) = await kit.receive()
        await shop.got(1)
        for _ in range(19):  # half a minute, and then more than the lease: it is kept all the time
            await kit.clock.tick("5s")
        item = (await kit.history(hook)).item
        assert (item.state, item.deliveries) == (State.LEASED, 1)
        assert item.lease_until is not None
        assert item.lease_until > kit.clock.now()
        door.opened.set()
        await kit.ended(hook)
    assert len(shop.seen) == 1


async def test_two_hubs_share_the_work(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url, order="none", concurrency=4)
    door = Door(shop)
    token = await kit.token("shop")
    async with hub(kit, token, name="a", concurrency=2), hub(kit, token, name="b", concurrency=2):
        await kit.until(lambda: len(kit.edge.sessions) == 2, "both are connected")
        ids = await kit.receive(*[b"%d" % number for number in range(8)])

        async def four() -> bool:
            await kit.clock.tick("10ms")  # a worker that found nothing twice waits a moment
            return len(shop.seen) == 4

        await kit.until(four, "four requests")
        had = [len(session.remote._deliveries) for session in kit.edge.sessions.values()]  # noqa: SLF001 - who has how many
        assert had == [2, 2]
        door.opened.set()
        await kit.ended(*ids)
    assert sorted(shop.ids) == sorted(ids)


async def test_a_destination_of_the_hub_gets_the_query_of_the_webhook(kit: Kit, shop: Target) -> None:
    await kit.endpoint("https://public.example/in?key=1")
    (hook,) = await kit.receive(b"{}", query="a=b")
    async with hub(kit, await kit.token(), destinations={"shop": f"{shop.url}/own"}, allow=[]):
        await kit.ended(hook)
    assert (shop.seen[0].path, shop.seen[0].query) == ("/own", "a=b")


async def test_without_a_destination_a_webhook_waits(kit: Kit) -> None:
    await kit.endpoint()
    (hook,) = await kit.receive(b"{}", query="a=b")
    async with hub(kit, await kit.token()):
        await kit.failed_once(hook)
    webhook = await kit.webhook(hook)
    assert (webhook.status, webhook.error_message) == ("pending", "hub h has no destination for endpoint shop")


async def test_a_private_address_is_for_the_hub_to_allow(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url)
    (hook,) = await kit.receive()
    async with hub(kit, await kit.token(), allow=[]):
        await kit.ended(hook, status="failed")
    assert shop.seen == []


async def test_headers_cannot_be_injected_by_the_edge(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url)
    (hook,) = await kit.receive(b"{}", headers=(("X-A", "1\r\nX-Admin: yes"),))
    async with hub(kit, await kit.token()):
        await kit.ended(hook, status="failed")
    assert shop.seen == []


@pytest.mark.parametrize(
    "headers",
    [
        [(b"X-Odd", b"\xff\xfe")],
        [(b"X-Long", b"x" * 60_000)] * 40,
        [(b"X-" + b"w" * 4_094, "🦉".encode() * 4_096)] * 110,
    ],
    ids=["odd", "long", "wide"],
)
async def test_an_answer_with_odd_headers_is_reported(
    kit: Kit, shop: Target, headers: list[tuple[bytes, bytes]]
) -> None:
    await kit.endpoint(shop.url)
    (hook,) = await kit.receive()
    door = Door(shop, (200, headers, b"y" * 200_000))
    door.opened.set()
    async with hub(kit, await kit.token()):
        await kit.ended(hook)
    assert len(shop.seen) == 1


async def test_an_error_in_the_hub_is_a_failed_attempt(kit: Kit, shop: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("no more memory")

    monkeypatch.setattr("redrive.webhooks.hub_client.sent", broken)
    await kit.endpoint(shop.url)
    (hook,) = await kit.receive()
    async with hub(kit, await kit.token()):
        await kit.failed_once(hook)
    webhook = await kit.webhook(hook)
    assert (webhook.status, webhook.attempts) == ("pending", 1)
    assert webhook.error_message == "hub h: RuntimeError: no more memory"


async def test_what_a_lost_answer_had_is_given_again(kit: Kit) -> None:
    await kit.endpoint()
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        (hook,) = await kit.receive()
        (given,) = await one.next()
        assert [given] == await one.next()
        async with polling(kit, one, given) as poll:
            await kit.clock.tick("14s")
            assert not poll.done()
            await kit.clock.tick("1s")
            assert await poll == []
        assert await one.result(given) == (200, {"accepted": True})
        await kit.ended(hook)


async def test_an_answer_has_bounded_bytes_or_one_delivery(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "ANSWER", 1_000)
    await kit.endpoint(order="none")
    await kit.receive(b"a" * 600, b"b" * 600, b"c" * 400, b"d" * 5_000)
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        await kit.until(lambda: sum(len(each.remote._deliveries) for each in kit.edge.sessions.values()) == 4, "leased")  # noqa: SLF001 - what waits
        sizes: list[list[int]] = []
        have: list[dict[str, Any]] = []
        for _ in range(3):
            found = await one.next(*have)
            have += found
            sizes.append([len(base64.b64decode(each["request"]["body"])) for each in found])
    assert sizes == [[600], [600, 400], [5_000]]


async def test_a_body_that_no_hub_takes_fails_for_all_to_see(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGEST * 4 / 3 + 2**20 < ANSWERS
    monkeypatch.setattr(hub_module, "LARGEST", 1_000)
    await kit.endpoint()
    (hook,) = await kit.receive(b"a" * 1_001)
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        await kit.ended(hook, status="failed")
    assert (await kit.webhook(hook)).error_message == "a body of 1,001 bytes is too large for a hub"


@pytest.mark.parametrize("fate", ["delivered", "failed", "dead_letter"])
async def test_h21_a_late_or_repeated_result_is_refused_and_counted(lab_kit: Kit, fate: str) -> None:
    kit = lab_kit
    await kit.endpoint(retry_on=[404] if fate == "dead_letter" else [])
    (hook,) = await kit.receive()
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        (given,) = await one.next()
        assert (await one.result(given, 200 if fate == "delivered" else 404))[1] == {"accepted": True}
        if fate == "dead_letter":
            await kit.failed_once(hook)
            await kit.relay.app.expire([hook], reason="for this test")
        await kit.ended(hook, status=fate)
        before = await kit.history(hook)
        for status in (200, 404, 500):
            assert await one.result(given, status) == (200, {"accepted": False})
    assert len(kit.refused) == 3
    assert await kit.history(hook) == before


async def test_h28_what_a_silent_hub_had_goes_to_another(lab_kit: Kit) -> None:
    kit = lab_kit
    await kit.endpoint()
    token = await kit.token()
    async with raw(kit, token) as silent, raw(kit, token) as other:
        await silent.connect("silent")
        (hook,) = await kit.receive()
        (had,) = await silent.next()
        await other.connect("other")
        given = await patiently(kit, other)
        assert kit.clock.monotonic() > 60_000, "not before it is known to be gone"
        assert (given["id"], given["attempt"]) == (had["id"], 1)
        assert given["delivery"] > had["delivery"]
        assert (await silent.result(had))[1]["code"] == "SESSION_UNKNOWN"
        assert (await other.result(had))[1] == {"accepted": False}
        assert (await other.result(given))[1] == {"accepted": True}
        await kit.ended(hook)
    first, second = (await kit.history(hook)).attempts
    assert (first.ending, first.note) == (Ending.SNOOZED, "no report of hub silent, which may have delivered it")
    assert second.ending is Ending.DONE
    assert (await kit.webhook(hook)).attempts == 1
    assert len(kit.refused) == 2


async def test_h29_a_result_of_another_hub_or_token_is_refused(kit: Kit) -> None:
    await kit.endpoint()
    await kit.endpoint(id="other")
    owner, stranger = await kit.token("shop"), await kit.token("other")
    (hook,) = await kit.receive()
    async with raw(kit, owner) as one, raw(kit, owner) as second, raw(kit, stranger) as third:
        await one.connect("one")
        (given,) = await one.next()
        await second.connect("second")
        await third.connect("third")
        assert (await second.result(given))[1] == {"accepted": False}
        assert (await third.result(given))[1] == {"accepted": False}
        third.session = one.session
        assert (await third.result(given))[1]["code"] == "SESSION_UNKNOWN"
        assert (await third.call("next", {"session": one.session}))[0] == 409
        assert (await third.call("close", {"session": one.session}))[0] == 409
        assert len(kit.refused) == 3
        assert (await kit.history(hook)).item.state is State.LEASED
        assert (await one.result(given))[1] == {"accepted": True}
        await kit.ended(hook)


async def test_a_result_for_what_was_not_given_is_refused(kit: Kit) -> None:
    await kit.endpoint()
    (hook,) = await kit.receive()
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        (session,) = kit.edge.sessions.values()
        await kit.until(lambda: bool(session.remote._deliveries), "leased")  # noqa: SLF001 - what waits
        assert (await one.result({"id": hook, "delivery": 1}))[1] == {"accepted": False}


async def test_a_hub_that_connects_again_takes_the_place_of_its_last_session(kit: Kit) -> None:
    await kit.endpoint()
    (hook,) = await kit.receive()
    async with raw(kit, await kit.token()) as one:
        await one.connect("h")
        old = one.session
        (had,) = await one.next()
        await one.connect("h")
        assert [session.name for session in kit.edge.sessions.values()] == ["h"]
        given = await patiently(kit, one)
        assert kit.clock.monotonic() >= 30_000, "its request may be under way"
        assert (given["id"], given["delivery"]) == (had["id"], had["delivery"] + 1)
        assert (await one.call("next", {"session": old}))[1]["code"] == "SESSION_UNKNOWN"
        await one.result(given)
        await kit.ended(hook)


async def test_a_hub_that_closes_its_session_has_nothing_under_way(kit: Kit) -> None:
    """What it was given in an answer that it did not wait for goes to another at once."""
    await kit.endpoint()
    token = await kit.token()
    (hook,) = await kit.receive()
    async with raw(kit, token) as one, raw(kit, token) as other:
        await one.connect("one")
        (had,) = await one.next()
        assert await one.call("close", {"session": one.session}) == (200, {"accepted": True})
        await other.connect("other")
        (given,) = await other.next()
    assert (given["id"], given["delivery"], given["attempt"]) == (hook, had["delivery"] + 1, 1)
    assert kit.clock.monotonic() == 0


async def test_a_hub_that_does_not_ask_is_given_nothing(kit: Kit) -> None:
    """What was leased for it in the moment after it had connected goes back, and nothing more is leased."""
    await kit.endpoint(order="none")
    token = await kit.token()
    (first,) = await kit.receive(b"1")
    async with raw(kit, token) as silent, raw(kit, token) as other:
        await silent.connect("silent")
        (session,) = kit.edge.sessions.values()
        await kit.until(lambda: bool(session.remote._deliveries), "leased")  # noqa: SLF001 - what waits
        await kit.clock.tick("2s")
        await kit.free(first)
        (second,) = await kit.receive(b"2")
        await other.connect("other")
        found: list[dict[str, Any]] = []
        while len(found) < 2:
            found += await other.next(*found)
        assert sorted(each["id"] for each in found) == sorted([first, second])
        assert {each["attempt"] for each in found} == {1}
    (attempt,) = (await kit.history(first)).attempts
    assert (attempt.ending, attempt.note) == (Ending.SNOOZED, "hub silent does not ask for more")


async def test_an_answer_that_no_hub_waits_for_has_nothing(kit: Kit) -> None:
    await kit.endpoint()
    token = await kit.token()
    async with raw(kit, token) as gone, raw(kit, token) as other:
        await gone.connect("gone")
        (session,) = kit.edge.sessions.values()
        async with polling(kit, gone):
            pass  # its connection is closed
        await kit.until(lambda: not session.remote.demand.wanted, "the edge has noticed it")
        await other.connect("other")
        async with polling(kit, other) as poll:
            (hook,) = await kit.receive()
            (given,) = await poll
    assert (given["id"], given["delivery"]) == (hook, 1)


async def test_a_later_poll_takes_the_place_of_one_before(kit: Kit) -> None:
    """Its connection may be lost without a sign."""
    await kit.endpoint()
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        async with polling(kit, one) as lost, polling(kit, one) as poll:
            (hook,) = await kit.receive()
            assert [each["id"] for each in await poll] == [hook]
            assert await lost == []


async def test_a_webhook_that_is_cancelled_under_way_keeps_its_place(kit: Kit) -> None:
    await kit.endpoint()
    first, second = await kit.receive(b"1", b"2")
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        (given,) = await one.next()
        await kit.relay.app.cancel([first], reason="a mistake")
        async with polling(kit, one, given) as poll:
            await kit.clock.tick("15s")
            assert await poll == []
        assert (await one.result(given))[1] == {"accepted": True}
        assert [each["id"] for each in await one.next()] == [second]
    assert (await kit.webhook(first)).status == "delivered"


async def test_a_signature_is_made_when_the_webhook_is_given() -> None:
    async with edge(encryption=KEYS) as kit:
        await kit.endpoint("https://a.example", events=["*"])
        async with raw(kit, await kit.token()) as one:
            await one.connect()
            await kit.relay.publish("order.paid", {})
            (session,) = kit.edge.sessions.values()
            await kit.until(lambda: bool(session.remote._deliveries), "leased")  # noqa: SLF001 - what waits
            kit.clock.jump_wall(400_000)
            (given,) = await one.next()
        assert dict(given["request"]["headers"])["webhook-timestamp"] == str(kit.clock.now() // 1000)


async def test_hubs_are_shown(kit: Kit) -> None:
    await kit.endpoint()
    tokens = [await kit.token("shop"), await kit.token()]
    async with raw(kit, tokens[0]) as one, raw(kit, tokens[1]) as two, raw(kit, tokens[1]) as three:
        await one.connect("b", endpoints=["shop"])
        await two.connect("b")
        await three.connect("a")
        await kit.clock.tick("50s")
        for each in (two, three):
            async with polling(kit, each) as poll:
                await kit.clock.tick("15s")
                await poll
        await three.call("close", {"session": three.session})
        shown = sorted(await kit.relay.hubs(), key=lambda each: (each.name, each.connected))
    assert [(each.name, each.endpoints, each.connected) for each in shown] == [
        ("a", ("*",), False),
        ("b", ("shop",), False),
        ("b", ("*",), True),
    ]
    assert [each.seen_at - each.connected_at for each in shown] == [65_000, 0, 50_000]


async def test_a_hub_of_an_edge_that_was_killed_is_not_connected(kit: Kit) -> None:
    async with raw(kit, await kit.token()) as one:
        await one.connect()
        kit.clock.advance("60s")
        assert [each.connected for each in await kit.relay.hubs()] == [True]
        kit.clock.advance(1)
        assert [each.connected for each in await kit.relay.hubs()] == [False]


async def test_hubs_are_forgotten_after_a_week(kit: Kit) -> None:
    await kit.endpoint()
    async with raw(kit, await kit.token()) as one:
        await one.connect("old")
        await one.call("close", {"session": one.session})
        kit.clock.advance("8d")
        await one.connect("new")
    assert [each.name for each in await kit.relay.hubs()] == ["new"]
