"""H-20 a target that takes 31 seconds. It gets exactly one request, by an endpoint without any options."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from redrive.webhooks import Relay
from redrive.webhooks.model import Envelope

SIZE = "1 webhook, 31 s"
TAKES = 31


@pytest.mark.timeout(120)
async def test_h20_a_slow_target_gets_one_request(tmp_path: Path) -> None:
    attempts: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        attempts.append(request.headers["X-Redrive-Attempt"])
        await asyncio.sleep(TAKES)  # noqa: TID251 - a real target, in real time
        return web.Response()

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Relay(f"sqlite:///{tmp_path}/hooks.db", allow=["127.0.0.0/8"], log=False) as relay:
            endpoint = (await relay.endpoints.create(f"http://127.0.0.1:{runner.addresses[0][1]}")).endpoint
            hook = await relay.receive(endpoint, Envelope(b"{}"))
            await relay.run(until_idle=True)
            webhook = await relay.webhooks.get(hook)
            assert (webhook.status, webhook.attempts, attempts) == ("delivered", 1, ["1"])
    finally:
        await runner.cleanup()
