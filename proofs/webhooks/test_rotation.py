"""S8: a secret is rotated during 10,000 deliveries, by a command that is killed again and again. No delivery fails."""

from __future__ import annotations

import asyncio
import base64
import sys

import pytest
from aiohttp import web

from redrive import Keyring
from redrive.errors import BadSignature
from redrive.net import signing
from redrive.webhooks import Relay
from tests.support.listening import HOST
from tests.support.rig.fleet import environment

EVENTS = 10_000
KILLS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Seconds after which the command is killed: some before it writes, some after."""
KNOWN = 1.5
"""Seconds after which every worker signs with a new secret, too."""


class Receiver:
    """Verifies with one secret. `answers`: how many it accepted and refused."""

    def __init__(self) -> None:
        self.secret = ""
        self.accepted = self.refused = 0
        self.all = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        response = await self._judged(request)
        if self.accepted + self.refused == EVENTS:
            self.all.set()
        return response

    async def _judged(self, request: web.BaseRequest) -> web.Response:
        body, now = await request.read(), int(request.headers["webhook-timestamp"])
        try:
            signing.verify([self.secret], list(request.headers.items()), body, now_seconds=now)
        except BadSignature:
            self.refused += 1
            return web.Response(status=401)
        self.accepted += 1
        return web.Response()


async def rotated(store: str, keys: str, kill_after: float | None) -> str:
    """What the command printed; "" if it was killed."""
    command = [sys.executable, "-m", "redrive", "webhook", "endpoint", "rotate-secret", "in", "--store", store]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**environment(), "REDRIVE_ENCRYPTION_KEYS": keys}
    )
    try:
        async with asyncio.timeout(kill_after):
            out, _ = await process.communicate()
            return out.decode().strip()
    except TimeoutError:
        process.kill()
        await process.wait()
        return ""


@pytest.mark.timeout(600)
async def test_s8_no_delivery_fails_while_the_secret_is_rotated_and_the_command_killed(on_file: str) -> None:
    receiver, key = Receiver(), base64.b64encode(bytes(range(32))).decode()
    runner = web.ServerRunner(web.Server(receiver.handle))
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    target = f"http://{HOST}:{runner.addresses[0][1]}/"
    ring = Keyring({"k1": key}, current="k1")
    async with Relay(on_file, allow=[f"{HOST}/32"], encryption=ring, log=False) as relay:
        made = await relay.endpoints.create(target, id="in", events=["*"], order="none", concurrency=20)
        receiver.secret = made.secret
        delivering = asyncio.create_task(relay.run())
        for number in range(EVENTS // 2):
            await relay.publish("order.paid", {"n": number})
        for kill_after in KILLS:
            await rotated(on_file, f"k1:{key}", kill_after)
        new = await rotated(on_file, f"k1:{key}", None)
        await asyncio.sleep(KNOWN)  # noqa: TID251 - real time, as a receiver waits before it drops the old secret
        receiver.secret = new
        for number in range(EVENTS // 2):
            await relay.publish("order.paid", {"n": number})
        await receiver.all.wait()
        await relay.stop()
        await delivering
        stats = await relay.endpoints.stats("in")
    await runner.cleanup()
    assert new.startswith("whsec_")
    assert new != made.secret
    assert (receiver.accepted, receiver.refused) == (EVENTS, 0)
    assert (stats.delivered, stats.failed, stats.pending) == (EVENTS, 0, 0)
