"""A relay on the lab's store and a receiver on a real port. Time stands still while a request is on its way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiohttp import web

from redrive import Keyring
from redrive.app.internals import Store
from redrive.errors import AppClosed
from redrive.testing.faults import FaultyStore, SimulatedCrash
from redrive.webhooks import Relay, Webhook
from tests.support.lab import Lab, LabClock, Shared

LOOPBACK = ("127.0.0.0/8",)
HOST = "127.0.0.1"
DAY = 24 * 3600
KEYS = Keyring({"k1": bytes(range(32))}, current="k1")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str] = {}  # noqa: RUF012 - of a tuple, which nobody changes
    body: bytes = b""


class Hold:
    """A request that is not answered until `release`. Time passes meanwhile."""

    def __init__(self, then: int = 200) -> None:
        self.then = then
        self.reached = False
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def released(self) -> None:
        await self._released.wait()


RESET = "reset"
Step = int | Answer | Hold | str


@dataclass
class Got:
    """A request as it came in. `at`: seconds of fake time."""

    at: float
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each.lower() == name.lower()), None)

    @property
    def id(self) -> str:
        return self.header("X-Redrive-Webhook-Id") or ""

    @property
    def attempt(self) -> int:
        return int(self.header("X-Redrive-Attempt") or 0)


@dataclass
class Receiver:
    """Answers as it is scripted: a status, an Answer, a Hold or RESET. `then`: what all meet that have no script;
    `by_path`: what meets those to this path, before `then`.
    """

    clock: LabClock
    then: Step = 200
    by_path: dict[str, Step] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    script: deque[Step] = field(default_factory=deque)
    url: str = ""
    _on_wire: set[object] = field(default_factory=set)

    @property
    def seconds(self) -> list[float]:
        """When the requests came, since the first."""
        return [each.at - self.got[0].at for each in self.got]

    @property
    def bodies(self) -> list[str]:
        return [each.body.decode() for each in self.got]

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.got]

    def wire(self, relay: Relay) -> None:
        """Time stands still while this relay sends, but not while a Hold is reached."""
        client = relay._client  # noqa: SLF001 - there is no other way to see what is sent
        real = client.post

        async def post(*args: Any, **options: Any) -> Any:
            sending = object()
            self._on_wire.add(sending)
            self.clock.enter()
            try:
                return await real(*args, **options)
            finally:
                self._ended(sending)

        client.post = post

    def _ended(self, sending: object) -> None:
        if sending in self._on_wire:
            self._on_wire.remove(sending)
            self.clock.leave()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.got.append(Got(self.clock.monotonic() / 1000, request.path_qs, list(request.headers.items()), body))
        step = self.script.popleft() if self.script else self.by_path.get(request.path, self.then)
        if isinstance(step, Hold):
            step.reached = True
            for sending in tuple(self._on_wire):
                self._ended(sending)
            await step.released()
            step = step.then
        if step == RESET and request.transport is not None:
            request.transport.abort()
        if not isinstance(step, Answer):
            step = Answer(step if isinstance(step, int) else 200)
        return web.Response(status=step.status, headers=step.headers, body=step.body)


@contextlib.asynccontextmanager
async def receiving(lab: Lab, *script: Step, then: Step = 200) -> AsyncIterator[Receiver]:
    receiver = Receiver(lab.clock, then=then, script=deque(script))
    runner = web.ServerRunner(web.Server(receiver.answer, access_log=None), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    receiver.url = f"http://{HOST}:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def relay_on(lab: Lab, receiver: Receiver, store: Store | None = None, **options: Any) -> Relay:
    given: dict[str, Any] = {"allow": LOOPBACK, "encryption": KEYS, "log": False, "actor": "lab"} | options
    relay = Relay(store or Shared(lab.store, lab.clock), clock=lab.clock, **given)
    receiver.wire(relay)
    return relay


@contextlib.asynccontextmanager
async def opened(lab: Lab, receiver: Receiver, **options: Any) -> AsyncIterator[Relay]:
    """Not running."""
    relay = relay_on(lab, receiver, **options)
    await lab.drive(relay.open())
    try:
        yield relay
    finally:
        await lab.drive(relay.close())


@contextlib.asynccontextmanager
async def running(lab: Lab, relay: Relay, **options: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(relay.run(**options))
    await lab.quiet()
    try:
        yield
    finally:
        await lab.drive(relay.stop(grace=0))
        await lab.drive(task)


@contextlib.asynccontextmanager
async def delivering(lab: Lab, receiver: Receiver, **options: Any) -> AsyncIterator[Relay]:
    """Open and running."""
    async with opened(lab, receiver, **options) as relay, running(lab, relay):
        yield relay


async def crash(lab: Lab, relay: Relay, faulty: FaultyStore, task: asyncio.Task[Any] | None = None) -> None:
    """The process of the relay is gone. The next one has a new handle on the store."""
    faulty.crash_at(faulty.points + 1)
    with contextlib.suppress(SimulatedCrash):
        await lab.drive(relay.endpoints.list())
    assert faulty.crashed
    for ending in (relay.close(), *([] if task is None else [task])):
        with contextlib.suppress(SimulatedCrash, AppClosed):
            await lab.drive(ending)
    await lab.reopen()


async def add(relay: Relay, receiver: Receiver, id: str = "shop", **options: Any) -> str:
    """An endpoint whose requests go to the receiver, at /ID."""
    return (await relay.endpoints.create(f"{receiver.url}/{id}", id=id, **options)).endpoint.id


class Told(NamedTuple):
    status: int
    body: dict[str, Any]
    headers: dict[str, str]


async def post(
    relay: Relay,
    endpoint: str = "shop",
    body: bytes = b"{}",
    headers: Sequence[tuple[str, str]] = (),
    *,
    method: str = "POST",
    query: str = "",
) -> Told:
    """A request to the relay's ASGI application."""
    path = f"/h/{endpoint}"
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    if not any(name == b"content-length" for name, _ in raw):
        raw.append((b"content-length", str(len(body)).encode()))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": raw,
        "server": (HOST, 80),
        "client": (HOST, 5),
    }
    given = deque([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return given.popleft() if given else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await relay.asgi()(scope, receive, send)
    start, whole = sent[0], b"".join(each.get("body", b"") for each in sent[1:])
    said = {name.decode(): value.decode() for name, value in start["headers"]}
    told = json.loads(whole) if said.get("content-type") == "application/json" else {}
    return Told(start["status"], told, said)


async def put(relay: Relay, *bodies: str, endpoint: str = "shop") -> list[str]:
    """Webhooks that come in, one after the other. Gives their ids."""
    return [(await post(relay, endpoint, body.encode())).body["id"] for body in bodies]


async def ended(lab: Lab, relay: Relay, id: str, *, limit: str = "1h") -> Webhook:
    """When it is pending no more."""

    async def look() -> Webhook:
        while (webhook := await relay.webhooks.get(id)).status == "pending":
            await lab.clock.sleep(500)
        return webhook

    return await lab.drive(look(), limit=limit)


async def next_attempt(lab: Lab, receiver: Receiver, id: str) -> None:
    """Let what is due be sent; then jump to the time at which this webhook is due, and let it be sent."""
    await lab.quiet()
    item = await lab.item(id)
    lab.clock.advance(max(0, item.due_at - lab.clock.now()))
    await lab.until(lambda: (id, item.attempt + 1) in [(each.id, each.attempt) for each in receiver.got], limit="5m")
    await lab.quiet()
