"""The broker of these tests misbehaves as told: what is proved with it is worth as much as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.support.broker import (
    PATIENCE,
    Broker,
    error_text,
    garbage,
    half,
    hang,
    limited,
    reset,
    rpc_error,
    sse,
    status,
    tool_error,
)

LEASE = {"task_id": "t", "lease_id": "l", "worker_id": "w", "tenant_id": "x"}


def request(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    name = f"asyncgate.{tool}"
    return {"jsonrpc": "2.0", "id": "7", "method": "tools/call", "params": {"name": name, "arguments": arguments}}


class Caller:
    def __init__(self, session: aiohttp.ClientSession, broker: Broker) -> None:
        self._session, self._broker = session, broker

    async def raw(self, tool: str = "complete", key: str = "k", **arguments: Any) -> tuple[int, bytes, Any]:
        limit = aiohttp.ClientTimeout(total=PATIENCE)
        headers = {"Idempotency-Key": key}
        body = request(tool, LEASE | arguments)
        url = f"{self._broker.url}/mcp"
        async with self._session.post(url, json=body, headers=headers, timeout=limit) as answer:
            return answer.status, await answer.read(), answer.headers

    async def told(self, tool: str = "complete", key: str = "k", **arguments: Any) -> Any:
        """What the text of the tool's result says."""
        answer = json.loads((await self.raw(tool, key, **arguments))[1])
        return json.loads(answer["result"]["content"][0]["text"])


@pytest.fixture
async def caller(broker: Broker) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as session:
        yield Caller(session, broker)


async def test_it_remembers_calls_and_does_a_key_once(broker: Broker, caller: Caller) -> None:
    assert await caller.told() == {"ok": True}
    assert await caller.told() == {"ok": True}
    assert [(call.tool, call.key, call.arguments["lease_id"]) for call in broker.calls] == [
        ("asyncgate.complete", "k", "l")
    ] * 2
    assert list(broker.accepted) == ["k"]


async def test_steps_are_met_in_turn_and_nothing_is_done(broker: Broker, caller: Caller) -> None:
    broker.script(status(500), limited(7), limited(), garbage(), rpc_error("QUOTA_EXCEEDED"), rpc_error(-32602))
    assert (await caller.raw())[0] == 500
    code, _, headers = await caller.raw()
    assert (code, headers["Retry-After"]) == (429, "7")
    assert "Retry-After" not in (await caller.raw())[2]
    with pytest.raises(ValueError, match="utf-8"):
        json.loads((await caller.raw())[1])
    assert json.loads((await caller.raw())[1])["error"]["data"] == {"code": "QUOTA_EXCEEDED"}
    assert json.loads((await caller.raw())[1])["error"]["code"] == -32602
    assert broker.accepted == {}
    assert await caller.told() == {"ok": True}


async def test_tool_results_that_are_errors(broker: Broker, caller: Caller) -> None:
    broker.script(tool_error("UNAUTHORIZED"), error_text("RATE_LIMIT_EXCEEDED", retry_after=7), sse())
    flagged = json.loads((await caller.raw())[1])["result"]
    assert flagged["isError"] is True
    hidden = json.loads((await caller.raw())[1])["result"]
    assert "isError" not in hidden
    assert json.loads(hidden["content"][0]["text"])["retry_after"] == 7
    _, body, headers = await caller.raw()
    assert headers["Content-Type"] == "text/event-stream"
    assert json.loads(body.split(b"data: ")[2])["id"] == "7"
    assert len(broker.accepted) == 1


async def test_links_that_break(broker: Broker, caller: Caller) -> None:
    broker.script(reset(done=True), half(), hang())
    with pytest.raises(aiohttp.ClientOSError):
        await caller.raw(key="done, and nobody knows")
    with pytest.raises(aiohttp.ClientPayloadError):
        await caller.raw()
    asking = asyncio.create_task(caller.raw())
    await broker.called(3)
    assert not (await asyncio.wait({asking}, timeout=0.05))[0], "nobody answers"
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert list(broker.accepted) == ["done, and nobody knows"]
    assert [call.answer for call in broker.calls] == ["reset", "half", "hang"]


async def test_down_and_up_on_the_same_port(broker: Broker, caller: Caller) -> None:
    await caller.told()
    port = broker.port
    broker.down()
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await caller.raw()  # on the link from before
    with pytest.raises(aiohttp.ClientConnectorError):
        await caller.raw()
    broker.up()
    assert broker.port == port
    assert await caller.told(key="after") == {"ok": True}
    await broker.called(2)


async def test_a_lease_counts_until_it_expires(broker: Broker, caller: Caller) -> None:
    task = broker.add_task({"n": 1})
    [given] = (await caller.told("lease_next", key=""))["tasks"]
    held = {"task_id": task.id, "lease_id": given["lease_id"]}
    assert (await caller.told("renew_lease", key="", **held))["lease_id"] == given["lease_id"]
    assert (await caller.told("complete", task_id=task.id))["code"] == "LEASE_INVALID_OR_EXPIRED"
    broker.expire(task.id)
    assert (await caller.told("complete", **held))["code"] == "LEASE_INVALID_OR_EXPIRED"
    [again] = (await caller.told("lease_next", key=""))["tasks"]
    assert await caller.told("complete", task_id=task.id, lease_id=again["lease_id"]) == {"ok": True}
    assert task.state == "succeeded"
    assert (await caller.told("fail", key="late", **held))["code"] == "INVALID_STATE_TRANSITION"


@pytest.mark.parametrize(("token", "tenant"), [("secret", None), (None, "acme")])
async def test_token_and_tenant_are_checked(token: str | None, tenant: str | None) -> None:
    with Broker(token=token, tenant=tenant) as broker:
        async with aiohttp.ClientSession() as session:
            assert (await Caller(session, broker).told())["code"] == "UNAUTHORIZED"
            headers = {"Authorization": "Bearer secret"}
            async with session.post(broker.url, json=LEASE | {"tenant_id": "acme"}, headers=headers) as answer:
                assert answer.status == 200
            async with session.post(broker.url, json=LEASE) as answer:
                assert answer.status == 401
    assert [call.tool for call in broker.accepted.values()] == [""]
