"""An edge receives webhooks on a public port; a hub in a private network fetches them and calls services there.

Here both are in one program, on two ports. They share a URL and a token, and nothing else.
"""

import asyncio
import tempfile

from aiohttp import ClientSession, web

from redrive.webhooks import Relay, WebhookHub


async def service() -> tuple[web.AppRunner, "asyncio.Queue[str]"]:
    """In the private network."""
    called: asyncio.Queue[str] = asyncio.Queue()

    async def handle(request: web.Request) -> web.Response:
        await called.put(await request.text())
        return web.Response(text="thanks")

    application = web.Application()
    application.add_routes([web.post("/in", handle)])
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, called


async def main(folder: str) -> None:
    runner, called = await service()
    private = f"http://127.0.0.1:{runner.addresses[0][1]}/in"

    # The edge: `redrive webhook edge --http 0.0.0.0:8080`
    async with Relay(f"sqlite:///{folder}/hooks.db", log=False) as edge, edge.serving("127.0.0.1", 0) as served:
        await edge.endpoints.create(id="payments", via="hub")
        _, token = await edge.tokens.create("home", ["payments"])
        keeping = asyncio.create_task(edge.run(deliver=False))
        public = f"http://{served.address}"

        async with ClientSession() as session, session.post(f"{public}/h/payments", data=b"paid") as answer:
            webhook = (await answer.json())["id"]
            print("received while no hub is connected:", (await edge.webhooks.get(webhook)).status)

        # The hub: `redrive webhook hub --edge https://hooks.example.com`
        hub = WebhookHub(public, token, name="cellar", destinations={"payments": private})
        working = asyncio.create_task(hub.run())
        print("the service in the private network got:", await called.get())
        await edge.app.wait(webhook)
        hub.stop()
        await working
        found = await edge.webhooks.get(webhook)
        print("the edge has it as:", found.status, "after", found.attempts, "attempt")

        await edge.stop()
        await keeping
    await runner.cleanup()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
