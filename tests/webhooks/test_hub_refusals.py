"""Hubs: what an edge refuses, by codes, limits and tokens that are revoked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive.errors import ConfigError
from redrive.webhooks import HubRefused, WebhookHub
from redrive.webhooks import hub as hub_module
from tests.webhooks.hub_kit import (
    LOOPBACK,
    Door,
    Kit,
    Target,
    hub,
    kit,
    raw,
    shop,
)

__all__ = ["kit", "shop"]


async def test_refusals_have_codes(kit: Kit) -> None:
    await kit.endpoint()
    await kit.endpoint(id="gone")
    await kit.relay.endpoints.create("https://a.example", id="direct")
    _, few = await kit.relay.tokens.create("few", ["gone"])
    revoked, old = await kit.relay.tokens.create("old")
    await kit.relay.tokens.revoke(revoked.id)
    await kit.relay.endpoints.delete("gone")
    asked = {"hub": "h"}
    async with raw(kit, await kit.token()) as every, raw(kit, few) as limited, raw(kit, old) as outdated:
        refused = [
            (every, asked, "", 401, "TOKEN_MISSING"),
            (every, asked, "Bearer ", 401, "TOKEN_MISSING"),
            (every, asked, "Basic abc", 401, "AUTH_FAILED"),
            (every, asked, "Bearer rdh_0_0", 401, "TOKEN_INVALID"),
            (every, asked, "Bearer é", 401, "TOKEN_INVALID"),
            (outdated, asked, None, 401, "TOKEN_REVOKED"),
            (limited, asked, None, 403, "NO_ENDPOINTS"),
            (limited, {**asked, "endpoints": ["shop"]}, None, 403, "ENDPOINT_ACCESS_DENIED"),
            (every, {**asked, "endpoints": ["direct"]}, None, 403, "ENDPOINT_ACCESS_DENIED"),
            (every, {**asked, "endpoints": ["gone"]}, None, 404, "ENDPOINT_NOT_FOUND"),
        ]
        for one, body, header, status, code in refused:
            got = await one.call("connect", body, header=header)
            assert (got[0], got[1]["code"]) == (status, code)
        assert (await every.call("next", {"session": "x"}))[1]["code"] == "SESSION_UNKNOWN"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("connect", b""),
        ("connect", b"{"),
        ("connect", b"\xff\xfe"),
        ("connect", b'{"hub":"a\xff"}'),
        ("connect", b"null"),
        ("connect", b'{"hub": 1}'),
        ("connect", b'{"hub": ""}'),
        ("connect", b'{"hub": "a b"}'),
        ("connect", b'{"hub": "a\\u0000"}'),
        ("connect", b'{"hub": "%s"}' % (b"a" * 129)),
        ("connect", b'{"hub": "a", "concurrency": 1e400}'),
        ("connect", b'{"hub": "a", "x": ' + b"[" * 60_000),
        ("next", b'{"session": "\\ud800"}'),
        ("next", b'{"session": "a", "have": [["x"]]}'),
        ("result", b'{"session": "s", "id": "i", "delivery": 1, "response": {"status": -1}}'),
        ("result", b'{"session": "s", "id": "i", "delivery": 1, "response": {"body": "%s"}}' % (b"AAAA" * 30_000)),
        ("result", b'{"session": "s", "id": "i", "delivery": 1, "response": {"body": "!"}}'),
    ],
)
async def test_hostile_bodies_are_bad_requests(kit: Kit, path: str, body: bytes) -> None:
    await kit.endpoint()
    async with raw(kit, await kit.token()) as one:
        assert (await one.call(path, body))[0] == 400
    assert kit.edge.sessions == {}


async def test_large_bodies_are_not_read(kit: Kit) -> None:
    async with raw(kit, await kit.token()) as one:
        for path, size in (("connect", 128 * 1024), ("next", 128 * 1024), ("result", 4 * 1024 * 1024)):
            status, said = await one.call(path, b" " * (size + 1))
            assert (status, said["code"]) == (413, "TOO_LARGE")


async def test_a_token_has_a_bounded_number_of_hubs(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "MOST", 2)
    token, other = await kit.token(), await kit.token()
    async with raw(kit, token) as one, raw(kit, other) as two:
        for name in ("a", "b", "b"):
            await one.connect(name)
        status, said = await one.call("connect", {"hub": "c"})
        assert (status, said["code"]) == (429, "TOO_MANY_HUBS")
        await two.connect("c")
        await one.call("close", {"session": one.session})
        await one.connect("c")


@pytest.mark.parametrize("concurrency", [-5, 10**9])
async def test_a_hub_has_a_bounded_number_of_deliveries(kit: Kit, concurrency: int) -> None:
    await kit.endpoint(order="none", concurrency=1_000)
    await kit.receive(*[b"%d" % number for number in range(120)])
    async with raw(kit, await kit.token()) as one:
        await one.connect(concurrency=concurrency)
        (session,) = kit.edge.sessions.values()
        await kit.until(lambda: bool(session.remote._deliveries), "leased")  # noqa: SLF001 - what waits
        await kit.clock.rest()
        assert len(session.remote._deliveries) == (1 if concurrency < 0 else 100)  # noqa: SLF001 - as above


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"edge": "ftp://edge"}, "edge"),
        ({"token": "a\nb"}, "token"),
        ({"name": "a b"}, "name"),
        ({"name": "a" * 129}, "name"),
        ({"endpoints": "shop"}, "endpoints"),
        ({"destinations": {"shop": "nowhere"}}, "destinations['shop']"),
        ({"concurrency": 101}, "concurrency"),
    ],
)
def test_options_of_a_hub_are_checked(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebhookHub(**{"edge": "https://edge.example", "token": "t", **options})
    assert caught.value.field == field


async def test_a_hub_ends_where_the_edge_refuses_for_good(kit: Kit) -> None:
    token = await kit.token()
    for made, code in (
        (WebhookHub(kit.url, "rdh_0_0", name="h", clock=kit.clock), "TOKEN_INVALID"),
        (WebhookHub(kit.url, token, name="h", endpoints=["x"], clock=kit.clock), "ENDPOINT_NOT_FOUND"),
    ):
        with pytest.raises(HubRefused) as caught:
            await made.run()
        assert caught.value.code == code


async def test_a_token_that_is_revoked_ends_its_hubs_at_once(kit: Kit, shop: Target) -> None:
    await kit.endpoint(shop.url, timeout="30s")
    token, text = await kit.relay.tokens.create("t")
    other = await kit.token()
    door = Door(shop)
    made = WebhookHub(kit.url, text, name="h", clock=kit.clock, allow=[LOOPBACK])
    run = asyncio.create_task(made.run())
    (hook,) = await kit.receive()
    await shop.got(1)
    await kit.relay.tokens.revoke(token.id)
    async with raw(kit, text) as one:
        assert (await one.call("next", {"session": "x"}))[1]["code"] == "TOKEN_REVOKED"
    assert kit.edge.sessions == {}
    await kit.free(hook)
    await kit.clock.tick("1s")
    with pytest.raises(HubRefused) as caught:
        await run
    assert caught.value.code == "TOKEN_REVOKED"
    door.opened.set()
    async with hub(kit, other):
        await kit.clock.tick("40s")
        await kit.ended(hook)
    assert shop.ids == [hook, hook]


async def test_nothing_is_given_to_a_hub_whose_token_was_revoked_while_it_waited(kit: Kit) -> None:
    await kit.endpoint()
    token, text = await kit.relay.tokens.create("t")
    async with raw(kit, text) as one:
        await one.connect()
        waiting = asyncio.create_task(one.call("next", {"session": one.session}))
        await kit.clock.rest()
        await kit.relay.tokens.revoke(token.id)
        (hook,) = await kit.receive()
        assert (await waiting)[1]["code"] == "TOKEN_REVOKED"
    await kit.free(hook)


async def test_a_revoked_token_is_noticed_without_a_request(kit: Kit) -> None:
    token, text = await kit.relay.tokens.create("t")
    async with raw(kit, text) as one:
        await one.connect()
        await kit.relay.tokens.revoke(token.id)
        await kit.clock.tick("15s")
        await kit.until(lambda: not kit.edge.sessions, "its session is closed")
