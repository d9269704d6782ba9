"""Edges, hubs and targets over real sockets, in the loop of the test. Time is fake."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
import uvicorn

from redrive.core.item import History
from redrive.core.states import State
from redrive.events import Event, SettleRefused
from redrive.testing.clock import FakeClock
from redrive.webhooks import Relay, Webhook, WebhookHub
from redrive.webhooks.hub import Edge
from redrive.webhooks.model import Envelope
from tests.support.lab import Lab, Shared
from tests.support.rig.patience import eventually

LIMIT = 20.0
"""Seconds of real time for what needs no fake time."""
LOOPBACK = "127.0.0.0/8"
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


@asynccontextmanager
async def serving(app: Any, port: int = 0, *, lifespan: bool = True) -> AsyncIterator[str]:
    """The URL of an ASGI application. At the end connections are cut: nobody waits for a long poll."""
    config = uvicorn.Config(app, log_config=None, ws="none", lifespan="on" if lifespan else "off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Named as TCP: else asyncio would let the kernel hold back the second half of an answer for some milliseconds.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    await server.startup(sockets=[listener])
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for each in server.servers:
            each.close()
        state = server.server_state
        for connection in tuple(state.connections):
            connection.transport.abort()
        for task in tuple(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await server.lifespan.shutdown()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


class Target:
    """What it receives, in order. `answers`: called for each request; 200 without it."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Arrived] = []
        self.answers: Callable[[Arrived], Awaitable[Answer | int]] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        arrived = Arrived(scope, body)
        self.seen.append(arrived)
        answer = 200 if self.answers is None else await self.answers(arrived)
        status, headers, text = (answer, [], b"") if isinstance(answer, int) else answer
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    @property
    def ids(self) -> list[str]:
        return [arrived.headers["x-redrive-webhook-id"] for arrived in self.seen]

    async def got(self, count: int) -> None:
        await eventually(lambda: len(self.seen) >= count, limit=LIMIT, what=f"{count} requests", poll=0.001)


class Arrived:
    def __init__(self, scope: Any, body: bytes) -> None:
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode()
        self.headers: dict[str, str] = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        self.body = body

    @property
    def attempt(self) -> str:
        return self.headers["x-redrive-attempt"]


@asynccontextmanager
async def target() -> AsyncIterator[Target]:
    made = Target()
    async with serving(made, lifespan=False) as url:
        made.url = url
        yield made


class Kit:
    """An edge, and what is asked of it."""

    def __init__(self, relay: Relay, clock: FakeClock, tick: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.relay = relay
        self.clock = clock
        self.tick = clock.tick if tick is None else tick
        self.url = ""
        self.edge: Edge = Edge(relay)
        self.refused: list[SettleRefused] = []
        relay.app.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        if isinstance(event, SettleRefused):
            self.refused.append(event)

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[str]:
        """A new process would have sessions of its own; here it has the same store."""
        app = self.relay.asgi()
        async with serving(app, port) as url:
            self.url, self.edge = url, app.state.edge
            yield url

    async def endpoint(self, url: str = "", id: str = "shop", **options: Any) -> str:
        options = {"order": "block", **options}
        await self.relay.endpoints.create(url, id=id, via="hub", **options)
        return id

    async def token(self, *endpoints: str) -> str:
        return (await self.relay.tokens.create("t", endpoints or ("*",)))[1]

    async def receive(self, *bodies: bytes, endpoint: str = "shop", **envelope: Any) -> list[str]:
        to = await self.relay.endpoints.get(endpoint)
        return [str(await self.relay.receive(to, Envelope(body, **envelope))) for body in bodies or (b"{}",)]

    async def webhook(self, id: str) -> Webhook:
        return await self.relay.webhooks.get(id)

    async def history(self, id: str) -> History:
        return await self.relay.app.history(id)

    async def ended(self, *ids: str, status: str = "delivered") -> None:
        async def check() -> bool:
            return all([(await self.webhook(each)).status == status for each in ids])

        await eventually(check, limit=LIMIT, what=f"{ids} are {status}", poll=0.002)

    async def failed_once(self, id: str) -> None:
        async def check() -> bool:
            return (await self.history(id)).item.errors > 0

        await eventually(check, limit=LIMIT, what=f"{id} has failed", poll=0.002)

    async def until(self, check: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        await eventually(check, limit=LIMIT, what=what, poll=0.001)

    async def free(self, id: str) -> None:
        """Until nobody has it."""

        async def check() -> bool:
            return (await self.history(id)).item.state is not State.LEASED

        await eventually(check, limit=LIMIT, what=f"{id} is given back", poll=0.002)


@asynccontextmanager
async def edge(**options: Any) -> AsyncIterator[Kit]:
    clock = FakeClock()
    async with Relay("memory:", clock=clock, log=False, actor="test", **options) as relay:
        kit = Kit(relay, clock)
        async with kit.serve():
            yield kit


@asynccontextmanager
async def hub(kit: Kit, token: str, **options: Any) -> AsyncIterator[WebhookHub]:
    """A hub that is told to stop at the end, and does."""
    made = WebhookHub(kit.url, token, **{"name": "h", "clock": kit.clock, "allow": [LOOPBACK], **options})
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        made.stop()
        await task


async def killed(task: asyncio.Task[None]) -> None:
    """Nothing of it is reported or closed."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Raw:
    """A hub by hand: each call to the edge as the test makes it."""

    def __init__(self, kit: Kit, token: str, http: aiohttp.ClientSession) -> None:
        self._kit = kit
        self._token = token
        self._http = http
        self.session = ""

    async def call(self, path: str, body: Any = None, *, header: str | None = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = f"Bearer {self._token}" if header is None else header
        headers = {"Authorization": said} if said else {}
        async with self._http.post(f"{self._kit.url}/hub/{path}", data=io.BytesIO(data), headers=headers) as response:
            return response.status, await response.json()

    async def connect(self, name: str = "raw", **asked: Any) -> None:
        status, answer = await self.call("connect", {"hub": name, **asked})
        assert status == 200, answer
        self.session = answer["session"]

    async def next(self, *have: dict[str, Any]) -> list[dict[str, Any]]:
        numbers = [[each["id"], each["delivery"]] for each in have]
        status, answer = await self.call("next", {"session": self.session, "have": numbers})
        assert status == 200, answer
        deliveries: list[dict[str, Any]] = answer["deliveries"]
        return deliveries

    async def result(self, given: dict[str, Any], status: int = 200, **more: Any) -> tuple[int, Any]:
        response = {"status": status, "body": base64.b64encode(b"thanks").decode(), **more}
        named = {"session": self.session, "id": given["id"], "delivery": given["delivery"]}
        return await self.call("result", {**named, "response": response})


@asynccontextmanager
async def raw(kit: Kit, token: str) -> AsyncIterator[Raw]:
    async with aiohttp.ClientSession() as http:
        yield Raw(kit, token, http)


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    async with edge(allow=[LOOPBACK]) as made:
        yield made


@pytest.fixture
async def lab_kit(lab: Lab) -> AsyncIterator[Kit]:
    """An edge on the store of a lab."""
    async with Relay(Shared(lab.store, lab.clock), clock=lab.clock, log=False, actor="test") as relay:
        made = Kit(relay, lab.clock, lab.pass_time)
        async with made.serve():
            yield made


@pytest.fixture
async def shop() -> AsyncIterator[Target]:
    async with target() as made:
        yield made


class Door:
    """A target that answers when the test opens it."""

    def __init__(self, shop: Target, answer: Answer | int = 200) -> None:
        self.opened = asyncio.Event()
        self.answer = answer
        shop.answers = self.wait

    async def wait(self, _: Arrived) -> Answer | int:
        await self.opened.wait()
        return self.answer


@asynccontextmanager
async def polling(kit: Kit, one: Raw, *have: dict[str, Any]) -> AsyncIterator[asyncio.Task[list[dict[str, Any]]]]:
    """A long poll that has reached the edge."""
    (session,) = [each for each in kit.edge.sessions.values() if each.id == one.session]
    session.remote.seen = -1
    task = asyncio.create_task(one.next(*have))
    await kit.until(lambda: session.remote.seen >= 0, "the poll has come")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def patiently(kit: Kit, one: Raw) -> dict[str, Any]:
    """The next delivery, polled for as a hub does, for two minutes."""
    for _ in range(8):
        async with polling(kit, one) as poll:
            await kit.tick("15s")
            if found := await poll:
                return found[0]
    raise AssertionError("nothing was given")
