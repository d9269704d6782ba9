"""Hubs: what becomes of deliveries when a hub, the edge or the store fails, or is told to stop."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec import structs

from redrive.core.states import State
from redrive.stores.clock import SystemClock
from redrive.stores.memory import MemoryStore
from redrive.testing.clock import FakeClock
from redrive.testing.faults import FaultyStore
from redrive.webhooks import Relay, WebhookHub
from redrive.webhooks import hub as hub_module
from redrive.webhooks.delivery import Request
from redrive.webhooks.hub import Accepted, Given, Result
from redrive.webhooks.hub_client import EdgeUnreachable
from tests.webhooks.hub_kit import (
    LOOPBACK,
    Door,
    Kit,
    Target,
    hub,
    killed,
    kit,
    polling,
    port_of,
    raw,
    serving,
    shop,
)

__all__ = ["kit", "shop"]


async def test_a_hub_that_is_killed_loses_nothing(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url)
    door = Door(shop)
    token = await kit.token()
    run = asyncio.create_task(WebhookHub(kit.url, token, name="killed", clock=kit.clock, allow=[LOOPBACK]).run())
    first, second = await kit.receive(b"1", b"2")
    await shop.got(1)
    await killed(run)
    door.opened.set()
    async with hub(kit, token, name="other"):
        await kit.clock.tick("59s")
        assert shop.ids == [first], "it may still be at work"
        await kit.clock.tick("30s")
        await kit.ended(first, second)
    assert shop.ids == [first, first, second]
    assert [arrived.attempt for arrived in shop.seen] == ["1", "1", "1"]
    notes = [attempt.note for attempt in (await kit.history(first)).attempts]
    assert notes == ["no report of hub killed, which may have delivered it", ""]


async def test_an_edge_that_restarts_gets_the_result_of_what_is_under_way(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url, timeout="30s")
    token, door = await kit.token(), Door(shop)
    async with kit.serve() as url:
        made = WebhookHub(url, token, name="h", clock=kit.clock, allow=[LOOPBACK])
        run = asyncio.create_task(made.run())
        (hook,) = await kit.receive()
        await shop.got(1)
    await kit.free(hook)
    async with kit.serve(port_of(url)):
        await kit.clock.tick("5s")
        await kit.until(lambda: bool(kit.edge.sessions), "it is connected again")
        (session,) = kit.edge.sessions.values()
        await kit.clock.tick("34s")
        assert not session.remote._deliveries, "others do not get it while it may be under way"  # noqa: SLF001 - what waits
        await kit.clock.tick("5s")
        await kit.until(lambda: bool(session.remote._deliveries), "leased")  # noqa: SLF001 - as above
        door.opened.set()
        await kit.ended(hook)
        made.stop()
        await run
    assert shop.ids == [hook], "one request, whose result was reported under the new number"


async def test_an_edge_that_is_away_gets_results_later(kit: Kit, shop: Target) -> None:
    """The target answers while nobody can be told: the result is kept until the edge is there again, and asks."""
    await kit.endpoint(shop.url)
    token, door = await kit.token(), Door(shop)
    async with kit.serve() as url:
        made = WebhookHub(url, token, name="h", clock=kit.clock, allow=[LOOPBACK])
        run = asyncio.create_task(made.run())
        (hook,) = await kit.receive()
        await shop.got(1)
    door.opened.set()
    for _ in range(10):
        await kit.clock.tick("2s")
    async with kit.serve(port_of(url)):
        for _ in range(40):
            await kit.clock.tick("2s")
            await kit.clock.rest()
        await kit.ended(hook)
        made.stop()
        await run
    assert shop.ids == [hook]


@pytest.mark.parametrize(("turn", "sent"), [("0.0", 1), ("0.1", 2), ("1.0", 2)])
async def test_a_result_counts_for_the_same_turn_only(
    monkeypatch: pytest.MonkeyPatch, shop: Target, turn: str, sent: int
) -> None:
    """Given again, a webhook may have been tried by another hub, have failed, or have been replayed since."""
    made, told = WebhookHub("http://127.0.0.1:1", "t", name="h", allow=[LOOPBACK]), []
    ended, door = asyncio.Event(), Door(shop)

    async def call(_hub: WebhookHub, _path: str, body: Result, _type: object) -> Accepted:
        told.append((body.id, body.delivery))
        ended.set()
        return Accepted(True)

    monkeypatch.setattr(WebhookHub, "_call", call)
    await made._guarded.open()  # noqa: SLF001 - as `run` does
    request = Request(shop.url, (("X-Redrive-Webhook-Id", "a"),), b"{}", 30_000)
    given = Given("a", 1, "shop", 1, "0.0", request)
    end = SystemClock().monotonic() + 30_000
    made._begin(given, end)  # noqa: SLF001 - as when it was given
    await shop.got(1)
    made._begin(structs.replace(given, delivery=3, turn=turn), end)  # noqa: SLF001 - as above
    await shop.got(sent)
    door.opened.set()
    await ended.wait()
    await made._guarded.close()  # noqa: SLF001 - as above
    assert told == [("a", 3)]
    assert len(shop.seen) == sent


async def test_a_delivery_that_took_too_long_to_the_hub_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, shop: Target
) -> None:
    """The edge may have given it to another hub by then."""
    made, told, ended = WebhookHub("http://127.0.0.1:1", "t", name="h", allow=[LOOPBACK]), [], asyncio.Event()

    async def call(_hub: WebhookHub, _path: str, body: Result, _type: object) -> Accepted:
        told.append(body.response)
        ended.set()
        return Accepted(True)

    monkeypatch.setattr(WebhookHub, "_call", call)
    given = Given("a", 1, "shop", 1, "0.0", Request(shop.url, (), b"{}", 30_000))
    made._begin(given, SystemClock().monotonic())  # noqa: SLF001 - as when it was given
    await ended.wait()
    assert [(each.status, each.error) for each in told] == [(0, "it took too long to hub h, and was not sent")]
    assert not shop.seen


async def test_a_delivery_that_a_hub_keeps_without_a_report_has_failed(kit: Kit) -> None:
    await kit.endpoint(timeout="1s")
    (hook,) = await kit.receive()
    async with raw(kit, await kit.token()) as one:
        await one.connect("h")
        (given,) = await one.next()
        for _ in range(5):  # the first that is asked after the request is over grants a minute
            async with polling(kit, one, given) as poll:
                await kit.clock.tick("15s")
                assert await poll == []
        async with polling(kit, one, given) as poll:
            await kit.failed_once(hook)
            await kit.clock.tick("1s")
            (again,) = await poll
        assert (again["id"], again["attempt"]) == (hook, 2)
        assert await one.result(given) == (200, {"accepted": False})
    (attempt,) = (await kit.history(hook)).attempts
    assert attempt.failure is not None
    assert attempt.failure.text == "hub h did not report within 75 s"


async def test_a_delivery_that_does_not_reach_its_hub_has_failed(kit: Kit) -> None:
    """Each answer is lost, as on a slow link, and asked for again."""
    await kit.endpoint(timeout="1s")
    (hook,) = await kit.receive()
    found: list[list[int]] = []
    async with raw(kit, await kit.token()) as one:
        await one.connect("h")
        for _ in range(4):
            async with polling(kit, one) as poll:
                await kit.clock.tick("46s")
                found.append([each["attempt"] for each in await poll])
    assert found == [[1], [1], [], [2]]
    (attempt,) = (await kit.history(hook)).attempts
    assert attempt.failure is not None
    assert attempt.failure.text == "hub h did not report within 138 s"


async def test_results_that_do_not_get_through_are_failed_attempts(
    kit: Kit, shop: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy in between refuses them; the hub still asks. It does not keep them for ever."""
    call = WebhookHub._call  # noqa: SLF001 - where the proxy is

    async def refused(self: WebhookHub, path: str, *given: Any, **options: Any) -> Any:
        if path == "result":
            raise EdgeUnreachable("HTTP 403")
        return await call(self, path, *given, **options)

    monkeypatch.setattr(WebhookHub, "_call", refused)
    await kit.endpoint(shop.url, timeout="1s", retry={"max_attempts": 1})
    (hook,) = await kit.receive()
    async with hub(kit, await kit.token()) as made:
        await shop.got(1)

        async def dropped() -> bool:
            await kit.clock.tick("1s")
            return not made._works  # noqa: SLF001 - what it keeps

        await kit.until(dropped, "the hub gives the result up")
    webhook = await kit.webhook(hook)
    assert webhook.status == "failed"
    assert str(webhook.error_message).startswith("hub h did not report within ")


async def test_a_report_that_is_too_large_is_made_without_headers_and_body(
    kit: Kit, shop: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(hub_module.LIMITS, "result", 1_000)
    await kit.endpoint(shop.url)
    door = Door(shop, (200, [], b"y" * 2_000))
    door.opened.set()
    (hook,) = await kit.receive()
    async with hub(kit, await kit.token()):
        await kit.ended(hook)
    (attempt,) = (await kit.history(hook)).attempts
    assert attempt.output.startswith(b"HTTP 200\n\nhub h: the edge refused the headers and the body: ")
    assert len(shop.seen) == 1


async def test_an_outage_of_the_store_disconnects_nobody(shop: Target) -> None:
    clock = FakeClock()
    store = FaultyStore(MemoryStore(clock))
    async with Relay(store, clock=clock, log=False, actor="test") as relay:
        kit = Kit(relay, clock)
        async with kit.serve():
            await kit.endpoint(shop.url)
            async with hub(kit, await kit.token()) as made:
                await kit.until(lambda: bool(made._session), "it is connected")  # noqa: SLF001 - there is no event
                sessions = list(kit.edge.sessions)
                for verb in ("document", "documents", "write_documents", "lease", "settle", "extend", "reclaim"):
                    store.fail(verb)
                async with raw(kit, "rdh_0_0") as one:
                    assert (await one.call("next", {}))[0] == 503
                for _ in range(40):
                    await clock.tick("5s")
                store.heal()
                for _ in range(14):
                    await clock.tick("5s")
                (hook,) = await kit.receive()
                for _ in range(14):
                    await clock.tick("5s")
                await kit.ended(hook)
                assert list(kit.edge.sessions) == sessions


async def test_a_hub_that_is_stopped_finishes_and_reports(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url)
    door = Door(shop)
    made = WebhookHub(kit.url, await kit.token(), name="h", clock=kit.clock, allow=[LOOPBACK])
    run = asyncio.create_task(made.run())
    first, second = await kit.receive(b"1", b"2")
    await shop.got(1)
    made.stop()
    await kit.clock.rest()
    assert not run.done()
    door.opened.set()
    await run
    await kit.ended(first)
    await kit.free(second)
    assert kit.edge.sessions == {}
    assert shop.ids == [first]


async def test_a_hub_that_is_stopped_does_not_wait_for_an_edge_for_ever(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url)
    door = Door(shop)
    async with kit.serve() as url:
        made = WebhookHub(url, await kit.token(), name="h", clock=kit.clock, allow=[LOOPBACK])
        run = asyncio.create_task(made.run())
        await kit.receive()
        await shop.got(1)
    made.stop()
    door.opened.set()
    for _ in range(20):
        await kit.clock.tick("2s")
    await kit.until(run.done, "it has ended")
    await run


async def test_an_edge_that_is_stopped_waits_for_results(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url)
    door = Door(shop)
    run = asyncio.create_task(kit.relay.run(deliver=False))
    async with hub(kit, await kit.token()):
        first, second = await kit.receive(b"1", b"2")
        await shop.got(1)
        stop = asyncio.create_task(kit.relay.stop())
        await kit.clock.rest()
        assert not stop.done()
        async with raw(kit, await kit.token()) as late:
            status, said = await late.call("connect", {"hub": "late"})
            assert (status, said["code"]) == (503, "EDGE_STOPPING")
        door.opened.set()
        await stop
        await run
    await kit.ended(first)
    assert (await kit.history(second)).item.deliveries == 0
    assert shop.ids == [first]


async def test_an_edge_that_is_stopped_at_once_waits_until_requests_are_over(kit: Kit) -> None:
    await kit.endpoint()
    (hook,) = await kit.receive()
    async with raw(kit, await kit.token()) as one:
        await one.connect("h")
        await one.next()
        await kit.relay.stop(grace=0)
    item = (await kit.history(hook)).item
    assert (item.state, item.attempt, item.due_at - kit.clock.now()) == (State.READY, 0, 50_000)


async def test_edges_that_share_an_address_without_sticky_routing_are_named(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    edges = [kit.relay.asgi(), kit.relay.asgi()]
    turns = itertools.cycle(edges)

    async def balanced(scope: Any, receive: Any, send: Any) -> None:
        await next(turns)(scope, receive, send)

    async with AsyncExitStack() as stack:
        for each in edges:
            await stack.enter_async_context(each.router.lifespan_context(each))
        kit.url = await stack.enter_async_context(serving(balanced, lifespan=False))
        async with hub(kit, await kit.token()):
            await kit.until(lambda: "does not serve" in caplog.text, "its session is unknown")
            assert "sticky routing" not in caplog.text
            await kit.clock.tick("1s")
            await kit.until(lambda: "sticky routing" in caplog.text, "it is again")


async def test_pauses_grow_to_a_minute_and_begin_anew_after_a_stable_one(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "redrive.webhooks")

    def pauses() -> list[int]:
        found = [int(text.split()[-2]) for text in caplog.messages if "does not serve" in text]
        caplog.clear()
        return found

    token = await kit.token()
    async with kit.serve() as url:
        pass
    made = WebhookHub(url, token, name="h", clock=kit.clock)
    run = asyncio.create_task(made.run())
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        await kit.until(lambda: bool(caplog.messages), "it has tried")
        assert pauses() == [seconds]
        await kit.clock.tick(seconds * 1000)
    await kit.until(lambda: bool(caplog.messages), "it has tried")
    async with kit.serve(port_of(url)):
        await kit.clock.tick("60s")
        await kit.until(lambda: bool(kit.edge.sessions), "it is connected")
        for _ in range(14):
            await kit.clock.tick("5s")
        pauses()
    await kit.until(lambda: "does not serve" in caplog.text, "the edge is gone")
    assert pauses() == [1]
    made.stop()
    await run


async def test_a_hub_does_not_hurry_where_sessions_end_at_once(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """H-B17: a clean close is no reason to connect again without a pause."""
    caplog.set_level(logging.WARNING, "redrive.webhooks")
    async with hub(kit, await kit.token()):
        for count in range(3):
            await kit.until(lambda: bool(kit.edge.sessions), "it is connected")
            async with raw(kit, "") as one:
                assert one is not None
            await kit.edge._disconnect(*kit.edge.sessions.values())  # noqa: SLF001 - as a clean close does
            await kit.until(lambda n=count: caplog.text.count("connect again") > n, "it was told")  # type: ignore[misc]  # the default is an int
            await kit.clock.rest()
            assert kit.edge.sessions == {}
            await kit.clock.tick(1_000 * 2**count)


async def test_h30_without_a_hub_a_webhook_dies_of_age_with_the_reason(kit: Kit) -> None:
    await kit.endpoint()
    (hook,) = await kit.receive()
    kit.clock.advance("7d")
    await kit.relay.maintain()
    assert (await kit.webhook(hook)).status == "pending"
    kit.clock.advance("1s")
    assert (await kit.relay.maintain()).dead_lettered == 1
    webhook = await kit.webhook(hook)
    assert (webhook.status, webhook.attempts) == ("dead_letter", 0)
    deeds = (await kit.history(hook)).deeds
    assert "not delivered within 7d: never attempted" in [deed.reason for deed in deeds]
