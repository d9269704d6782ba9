"""Webhooks in a simulated world: an ordered endpoint, whose deliverers crash and whose every message may be lost.

Seeds that are even have two workers that deliver; odd ones an edge with two hubs. One target looks at what arrives.

    python -m tests.support.simulation.hooks 7      # everything that happened in this world
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from unittest import mock

from starlette.applications import Starlette

from redrive.core.item import Attempt, Ending, Millis
from redrive.errors import StoreError
from redrive.net.http import BrokenAnswer, HttpAnswer, TimedOut, Unreachable
from redrive.testing._relay import Answer, P
from redrive.testing._relay import Relay as StoreRelay
from redrive.webhooks import Relay, WebhookHub, hub_client, relay
from redrive.webhooks.hub import Edge
from redrive.webhooks.model import Envelope, Via
from tests.support.simulation.loop import PROCESS, Process, SimulatedClock, SimulatedLoop
from tests.support.simulation.play import dismantle, seeded, uncollected, unhandled
from tests.support.simulation.world import Node, World

HOOKS = 15
BLOWS = 6
CRASHES = 0.6
"""Of the blows; the others are orders to stop."""
HURRIED = 0.5
"""Of the orders to stop that an edge gets: without a grace."""
LOST = 0.03
"""Of the messages of HTTP, each way."""
REFUSED = 0.15
SLOW = 0.1
LONGEST: Millis = 40_000
"""That the target takes: longer than a request may."""
LIMIT: Millis = 3_600_000
EDGE = "http://edge"
Faults = dict[str, dict[str, str]]
Reply = tuple[int, bytes]


class Open(StoreRelay):
    """For the outside world, which nothing strikes. It is not closed by who uses it."""

    async def open(self) -> Open:
        return self

    async def close(self) -> None:
        return

    async def relay(self, verb: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Answer:
        return await verb(*args, **kwargs)  # type: ignore[no-any-return]  # the verb's own


class Target:
    """Looks at each request when it arrives: nothing may be left out, overtaken, or sent twice at once."""

    def __init__(self, world: HookWorld) -> None:
        self.numbers: dict[str, int] = {}
        self.accepted: Counter[str] = Counter()
        self._world = world
        self._flying: list[tuple[str, Process]] = []

    async def call(self, process: Process, headers: Mapping[str, str]) -> Reply:
        hook = headers["X-Redrive-Webhook-Id"]
        for other, by in self._flying:
            if not by.dead:
                self._fault("double", hook, f"sent by {process.name} while {by.name} sends {other}")
        self._flying.append((hook, process))
        try:
            return await self._world.http(lambda: self._receive(hook, headers))
        finally:
            self._flying.remove((hook, process))

    async def _receive(self, hook: str, headers: Mapping[str, str]) -> Reply:
        world, dice = self._world, self._world.dice
        number = self.numbers[hook]
        world.note(PROCESS.get(), "arrives", f"{number} attempt {headers['X-Redrive-Attempt']}")
        if headers["Idempotency-Key"] != hook:
            self._fault("strange", hook, "it has another key")
        if number > len(self.accepted):
            self._fault("gap", hook, f"{number} before {len(self.accepted)} was accepted")
        elif number < len(self.accepted) - 1:
            self._fault("overtaken", hook, f"{number} after {len(self.accepted) - 1} was accepted")
        if world.weather.stormy and dice.random() < REFUSED:
            return 503, b""
        self.accepted[hook] += 1
        if world.weather.stormy and dice.random() < SLOW:
            await world.sleep(dice.randrange(LONGEST))
        return 200, b""

    def _fault(self, name: str, hook: str, text: str) -> None:
        self._world.found[name].setdefault(str(self.numbers[hook]), text)


class HookWorld(World):
    edge: EdgeNode

    def __init__(self, seed: int, loop: SimulatedLoop) -> None:
        super().__init__(seed, loop, lambda store: store)
        self.seed = seed
        self.target = Target(self)
        self.token = ""

    async def http(self, serve: Callable[[], Awaitable[Reply]]) -> Reply:
        await self._travel()
        answer = await serve()
        await self._travel()
        return answer

    async def _travel(self) -> None:
        """A message that is lost is waited for, or its connection is reset."""
        await self.sleep(self.dice.randrange(20))
        if self.weather.stormy and self.dice.random() < LOST:
            if self.dice.random() < 0.5:
                raise BrokenAnswer("connection reset")
            await self.loop.create_future()


class SimulatedHttp:
    """In place of `HttpClient`, in the process that made it."""

    world: HookWorld

    def __init__(self, **_: Any) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def post(
        self, url: str, body: bytes, headers: Any, *, within: Millis, token: str = "", **_: Any
    ) -> HttpAnswer:
        world, process = self.world, PROCESS.get()
        try:
            async with asyncio.timeout(within / 1000):
                if url.startswith(EDGE):
                    status, answer = await world.http(lambda: world.edge.call(url.removeprefix(EDGE), body, token))
                else:
                    status, answer = await world.target.call(process, dict(headers))
        except TimeoutError:
            raise TimedOut("no answer") from None
        return HttpAnswer(status, {}, answer)


class HookNode(Node):
    """Killed, or told to stop: then it ends by itself."""

    world: HookWorld
    told: asyncio.Event

    def start(self) -> None:
        self.told = asyncio.Event()
        super().start()

    def stop(self) -> None:
        self.world.note(self.process, "stops")
        self.process.context.copy().run(self.told.set)

    async def work(self) -> None:
        await self.serve(SimulatedClock(self.world.loop, self.process))
        self.world.note(self.process, "ends")
        self.process.kill()

    async def serve(self, clock: SimulatedClock) -> None:
        raise NotImplementedError

    async def opened(self, clock: SimulatedClock) -> Relay:
        while True:
            try:
                return await Relay(self.wire, clock=clock, log=False, actor=self.name).open()
            except StoreError:
                await self.world.sleep(500)


class DeliveringNode(HookNode):
    async def serve(self, clock: SimulatedClock) -> None:
        made = await self.opened(clock)
        run, told = asyncio.create_task(made.run()), asyncio.create_task(self.told.wait())
        await asyncio.wait({run, told}, return_when=asyncio.FIRST_COMPLETED)
        await made.stop()
        with suppress(StoreError):  # at its very start
            await run


class HubNode(HookNode):
    async def serve(self, clock: SimulatedClock) -> None:
        made = WebhookHub(EDGE, self.world.token, name=self.name, clock=clock)
        run = asyncio.create_task(made.run())
        await self.told.wait()
        made.stop()
        await run


class EdgeNode(HookNode):
    asgi: Starlette | None = None

    def start(self) -> None:
        self.asgi = None
        super().start()

    async def serve(self, clock: SimulatedClock) -> None:
        made = await self.opened(clock)
        edge = Edge(made)
        app = Starlette(routes=list(edge.routes()))
        async with edge.lifespan(app):
            self.asgi = app
            await self.told.wait()
            await made.stop(grace=0 if self.world.dice.random() < HURRIED else None)
            self.asgi = None

    async def call(self, path: str, body: bytes, token: str) -> Reply:
        if self.asgi is None or self.process.dead:
            raise Unreachable("connection refused")
        answer: asyncio.Future[Reply] = self.world.loop.create_future()
        self.world.loop.start(self.process, self._answer(path, body, token, answer))
        return await answer

    async def _answer(self, path: str, body: bytes, token: str, answer: asyncio.Future[Reply]) -> None:
        """A caller that waits no more cancels the answer; one that was killed is not heard of."""
        parts: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.wait({answer})
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        assert self.asgi is not None
        await self.asgi(scope, receive, send)
        if not answer.done():
            answer.set_result((sent[0]["status"], b"".join(part.get("body", b"") for part in sent[1:])))


async def _play(world: HookWorld, options: dict[str, Any]) -> None:
    await world.memory.open()
    via: Via = "hub" if world.seed % 2 else "direct"
    clock = SimulatedClock(world.loop, world.loop.outside)
    outside = await Relay(Open(world.memory), clock=clock, log=False, actor="outside").open()
    given = {"order": "block", **options}
    endpoint = (await outside.endpoints.create("https://target.example", id="shop", via=via, **given)).endpoint
    world.token = (await outside.tokens.create("hubs"))[1]
    nodes: list[HookNode]
    if via == "hub":
        world.edge = EdgeNode(world, "edge")
        nodes = [world.edge, HubNode(world, "hub-1"), HubNode(world, "hub-2")]
    else:
        nodes = [DeliveringNode(world, "worker-1"), DeliveringNode(world, "worker-2")]
    for node in nodes:
        node.start()
    supervisor = world.loop.start(world.loop.outside, _restart(world, nodes))
    for number in range(HOOKS):
        hook = str(await outside.receive(endpoint, Envelope(b"%d" % number)))
        world.target.numbers[hook] = number
    for _ in range(BLOWS):
        await world.sleep(world.dice.randrange(20_000))
        node = world.dice.choice(nodes)
        if node.running:
            (node.crash if world.dice.random() < CRASHES else node.stop)()
    world.weather.stormy = False
    await _drain(world, outside)
    supervisor.cancel()
    await _check(world, outside)


async def _restart(world: World, nodes: list[HookNode]) -> None:
    while True:
        await world.sleep(world.dice.randrange(200, 10_000))
        for node in nodes:
            if not node.running:
                node.start()


async def _drain(world: HookWorld, outside: Relay) -> None:
    end = world.now + LIMIT
    while len(await outside.webhooks.list("shop", status="delivered")) < HOOKS:
        if world.now > end:
            world.found["stuck"]["all"] = f"{len(world.target.accepted)} of {HOOKS} were accepted"
            return
        await world.sleep(1_000)


async def _check(world: HookWorld, outside: Relay) -> None:
    """A repeat is excused by an attempt whose outcome nobody knows, and by nothing else."""
    for hook, number in world.target.numbers.items():
        history = await outside.app.history(hook)
        unknown = sum(map(_is_unknown, history.attempts))
        repeats = world.target.accepted[hook] - 1
        if repeats > unknown:
            world.found["repeated"][str(number)] = f"{repeats} times, and {unknown} attempts have no known outcome"


def _is_unknown(attempt: Attempt) -> bool:
    if attempt.ending is Ending.FAILED and attempt.failure is not None:
        return "answered" not in attempt.failure.text
    return attempt.ending in (Ending.CRASHED, Ending.SNOOZED, Ending.RELEASED)


def simulate(seed: int, **options: Any) -> tuple[Faults, HookWorld]:
    """What is wrong, and the world. `options` of the endpoint: to plant a fault."""
    with (
        seeded(seed),
        uncollected(),
        mock.patch.object(relay, "HttpClient", SimulatedHttp),
        mock.patch.object(hub_client, "HttpClient", SimulatedHttp),
    ):
        loop = SimulatedLoop(random.Random(~seed))
        world = HookWorld(seed, loop)
        SimulatedHttp.world = world
        loop.set_exception_handler(lambda _, context: unhandled(world, context))
        try:
            loop.run_until_complete(_play(world, options))
            # A process has several workers here, and one lease request that is not repeated says nothing.
            return {name: dict(each) for name, each in world.found.items() if each and name != "abandoned"}, world
        finally:
            dismantle(world)


if __name__ == "__main__":
    faults, seen = simulate(int(sys.argv[1]))
    print(*seen.notes, faults, sep="\n")  # noqa: T201 - what it is for
