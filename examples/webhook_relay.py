"""GitHub sends three webhooks while your service is down for a moment. All arrive, in their order."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import tempfile

from aiohttp import ClientSession, web

from redrive import Keyring
from redrive.webhooks import Relay

SECRET = "what you typed into the settings of GitHub"  # noqa: S105 - an example
KEYS = Keyring({"k1": base64.b64encode(os.urandom(32)).decode()}, current="k1")  # keep yours in a safe place


class Service:
    """Yours, at some port. It fails once."""

    def __init__(self) -> None:
        self.requests = 0
        self.done: asyncio.Queue[int] = asyncio.Queue()

    async def handle(self, request: web.Request) -> web.Response:
        self.requests += 1
        number = (await request.json())["number"]
        status = 503 if self.requests == 1 else 200
        print(f"your service answers {status} to issue {number}, attempt {request.headers['X-Redrive-Attempt']}")
        if status == 200:
            await self.done.put(number)
        return web.Response(status=status)

    async def start(self) -> web.AppRunner:
        application = web.Application()
        application.add_routes([web.post("/github", self.handle)])
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner


async def github(url: str) -> None:
    """As GitHub does it: signed, and with an id of its own. It repeats the last one, since it got no answer, say."""
    async with ClientSession() as session:
        for number in (1, 2, 3, 3):
            body = json.dumps({"action": "opened", "number": number}).encode()
            signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
            headers = {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": f"delivery-{number}"}
            async with session.post(url, data=body, headers=headers) as answer:
                repeat = ", known already" if (await answer.json())["duplicate"] else ""
                print(f"GitHub sent issue {number} and was answered {answer.status}{repeat}")


async def main(folder: str) -> None:
    service = Service()
    runner = await service.start()
    # A service on this machine: addresses that are not public have to be allowed.
    async with Relay(f"sqlite:///{folder}/hooks.db", encryption=KEYS, allow=["127.0.0.0/8"], log=False) as relay:
        target = f"http://127.0.0.1:{runner.addresses[0][1]}/github"
        await relay.endpoints.create(target, id="github", provider="github", secret=SECRET)
        async with relay.serving("127.0.0.1", 0) as served:
            await github(f"http://{served.address}/h/github")

        delivering = asyncio.create_task(relay.run())
        for _ in range(3):
            await service.done.get()
        await relay.stop()
        await delivering
        stats = await relay.endpoints.stats("github")
        print(f"{stats.delivered} delivered, {stats.pending} pending, {stats.failed} failed")
    await runner.cleanup()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
