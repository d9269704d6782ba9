"""An ordered endpoint, whose deliverers are killed again and again until everything was delivered.

    python -m tests.support.webhook_kills <order as JSON>

This process only forks. One child is the target: it accepts, refuses or cuts the connection, and writes down what came.
The others deliver: a worker, or an edge with two hubs. Whenever the target has accepted some more, and a moment later,
one of them is killed and another one started. Prints one report.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Literal

import msgspec
import uvicorn
from aiohttp import web
from msgspec import Struct

from redrive.app.internals import store_of
from redrive.core.item import Attempt, Ending, NewItem, Terms
from redrive.webhooks import Relay, WebhookHub
from redrive.webhooks.model import ORDER_KEY, Envelope
from tests.support.mailbox_kills import HastyClock
from tests.support.rig.engines import kind_of
from tests.support.rig.fork import Child

LATER = 0.006
"""Seconds at most between the last of what was accepted and a kill: any step of what follows may be the last."""
REFUSED, RESET, CUT = 0.08, 0.02, 0.02
"""Of the requests: answered 503; not accepted, and no answer; accepted, and no answer."""
ENDPOINT = "shop"
PUT = 500
POLL = 0.2


class Order(Struct, frozen=True):
    store: str
    folder: str
    via: Literal["direct", "hub"]
    hooks: int
    kills: int
    limit: float
    seed: int = 1
    ordered: bool = True

    @property
    def ledger(self) -> Path:
        return Path(self.folder) / "ledger"


class Report(Struct):
    """`faults`: what is wrong. `repeats`: of what was accepted more than once."""

    faults: list[str]
    delivered: int
    kills: int
    repeats: int


# -- what is written down, and what it says --------------------------------------------------------------------------


class Ledger:
    """A line for each thing that happens, in its order: a word, and the number of a webhook or a name."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, word: str, what: str) -> None:
        os.write(self._file, f"{word} {what}\n".encode())


def faults(lines: Iterable[tuple[str, str]], hooks: int, unknown: Mapping[str, int]) -> list[str]:
    """`unknown`: how many attempts for a webhook have an outcome that nobody knows."""
    found: list[str] = []
    accepted: Counter[str] = Counter()
    for word, what in lines:
        if word == "kill":
            continue
        number = int(what)
        if number > len(accepted):
            found.append(f"{number} came before {len(accepted)} was accepted")
        elif number < len(accepted) - 1:
            found.append(f"{number} came after {len(accepted) - 1} was accepted")
        if word in ("accept", "cut"):
            accepted[what] += 1
    if len(accepted) != hooks:
        found.append(f"{len(accepted)} of {hooks} were accepted")
    for what, count in accepted.items():
        if count - 1 > unknown.get(what, 0):
            found.append(f"{what} was accepted {count} times, with {unknown.get(what, 0)} attempts of unknown outcome")
    return found


def is_unknown(attempt: Attempt) -> bool:
    if attempt.ending is Ending.FAILED and attempt.failure is not None:
        return "answered" not in attempt.failure.text
    return attempt.ending in (Ending.CRASHED, Ending.SNOOZED, Ending.RELEASED)


# -- the processes ---------------------------------------------------------------------------------------------------


class Play:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.clock = HastyClock()
        self.ledger = Ledger(order.ledger)
        self.teller, self._giver = os.pipe()
        self._ports = [_reserved(), _reserved()]
        self._parent = os.getpid()
        self.token = ""

    def _url(self, which: int) -> str:
        return f"http://127.0.0.1:{self._ports[which].getsockname()[1]}"

    def child(self, work: Callable[[], Awaitable[object]]) -> Child:
        return Child(lambda: asyncio.run(self._alone(work)))

    async def _alone(self, work: Callable[[], Awaitable[object]]) -> object:
        """Without a parent it has nothing to do."""
        watch = asyncio.create_task(self._watch())
        try:
            return await work()
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        while os.getppid() == self._parent:  # noqa: ASYNC110 - nobody sets an event
            await asyncio.sleep(POLL)  # noqa: TID251 - real processes need real time
        os._exit(1)

    def relay(self) -> Relay:
        return Relay(self.order.store, clock=self.clock, log=False, actor="play", allow=["127.0.0.0/8"])

    async def put(self) -> str:
        via, order = self.order.via, "block" if self.order.ordered else "none"
        async with self.relay() as relay:
            many = {} if self.order.ordered else {"concurrency": 2}
            made = await relay.endpoints.create(self._url(0), id=ENDPOINT, via=via, order=order, **many)  # type: ignore[arg-type]  # one of two words
            terms = Terms(order_key=ORDER_KEY) if self.order.ordered else None
            for start in range(0, self.order.hooks, PUT):
                numbers = range(start, min(start + PUT, self.order.hooks))
                items = [
                    NewItem(f"{number:06}", made.endpoint.queue, Envelope(b"{}").encode(), terms=terms)
                    for number in numbers
                ]
                await store_of(relay.app).put(items)
            return (await relay.tokens.create("hubs"))[1]

    async def target(self) -> None:
        dice = random.Random(self.order.seed)

        async def handle(request: web.Request) -> web.Response:
            number = request.headers["X-Redrive-Webhook-Id"]
            if request.headers["Idempotency-Key"] != number:
                number = f"-{number}"  # which is a fault
            roll = dice.random()
            if roll < REFUSED:
                self.ledger.write("refuse", number)
                return web.Response(status=503)
            if roll < REFUSED + RESET:
                self.ledger.write("reset", number)
            else:
                cut = roll < REFUSED + RESET + CUT
                self.ledger.write("cut" if cut else "accept", number)
                os.write(self._giver, b".")
                if not cut:
                    return web.Response()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        app = web.Application()
        app.router.add_post("/", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, _listening(self._ports[0])).start()
        await asyncio.get_running_loop().create_future()

    async def worker(self) -> None:
        async with self.relay() as relay:
            await relay.run()

    async def edge(self) -> None:
        async with self.relay() as relay:
            config = uvicorn.Config(relay.asgi(), log_config=None, ws="none", lifespan="on")
            await uvicorn.Server(config).serve([_listening(self._ports[1])])

    def hub(self, name: str) -> Callable[[], Awaitable[None]]:
        made = WebhookHub(self._url(1), self.token, name=name, clock=self.clock, allow=["127.0.0.0/8"])
        return made.run

    async def look(self) -> object:
        lines = [(word, what) for word, what in map(str.split, self.order.ledger.read_text().splitlines())]
        accepted = Counter(what for word, what in lines if word in ("accept", "cut"))
        repeated = [what for what, count in accepted.items() if count > 1]
        async with self.relay() as relay:
            unknown = {
                each: sum(map(is_unknown, (await relay.app.history(each)).attempts))
                for each in repeated
                if not each.startswith("-")
            }
            delivered = sum(row.done for row in (await relay.app.tally()).queues if row.queue.endswith(f":{ENDPOINT}"))
        found = faults(lines, self.order.hooks, unknown) + [
            f"{what} has another key" for what in accepted if what < "0"
        ]
        kills = sum(word == "kill" for word, _ in lines)
        return msgspec.to_builtins(Report(found[:20], delivered, kills, accepted.total() - len(accepted)))

    async def pending(self) -> object:
        async with self.relay() as relay:
            return sum(row.live for row in (await relay.app.tally()).queues if row.queue.endswith(f":{ENDPOINT}"))


def _reserved() -> socket.socket:
    """A port that nobody else gets, bound and not listened on."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", 0))
    return made


def _listening(reserved: socket.socket) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(reserved.getsockname())
    made.listen()
    return made


# -- the chase -------------------------------------------------------------------------------------------------------


class Chase:
    def __init__(self, play: Play) -> None:
        self._play = play
        self._dice = random.Random(play.order.seed)
        self._until = time.monotonic() + play.order.limit
        hub = {"edge": play.edge, "hub-1": play.hub("hub-1"), "hub-2": play.hub("hub-2")}
        self._works = hub if play.order.via == "hub" else {"worker": play.worker}
        self._alive: dict[str, Child] = {}

    def run(self) -> None:
        order = self._play.order
        try:
            self._start("target", self._play.target)
            for name, work in self._works.items():
                self._start(name, work)
            every = max(1, order.hooks // (order.kills + 1))
            for _ in range(order.kills):
                self._accepted(self._dice.randint(max(1, every // 2), every))
                time.sleep(self._dice.uniform(0, LATER))  # noqa: TID251 - real processes need real time
                for name in self._victims():
                    self._kill(name)
                    self._play.ledger.write("kill", name)
                    self._start(name, self._works[name])
            while _done(self._play, self._play.pending):
                assert time.monotonic() < self._until, "not over in time"
                time.sleep(POLL)  # noqa: TID251 - as above
        finally:
            for name in tuple(self._alive):
                self._kill(name)

    def _victims(self) -> list[str]:
        names = list(self._works)
        return self._dice.sample(names, self._dice.choice((1, 1, min(2, len(names)))))

    def _accepted(self, count: int) -> None:
        while count > 0:
            assert time.monotonic() < self._until, "not over in time"
            count -= len(os.read(self._play.teller, count))

    def _start(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        self._alive[name] = self._play.child(work)

    def _kill(self, name: str) -> None:
        child = self._alive.pop(name)
        os.kill(child.pid, signal.SIGKILL)
        code, _ = child.wait()
        assert code == -signal.SIGKILL, f"{name} ended by itself: {code}"


def _done(play: Play, work: Callable[[], Awaitable[object]]) -> object:
    code, answer = play.child(work).wait()
    assert code == 0
    return answer


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    import_module(f"redrive.stores.{kind_of(order.store)}")
    logging.basicConfig(filename=Path(order.folder) / "log", level=logging.WARNING)
    play = Play(order)
    play.token = str(_done(play, play.put))
    Chase(play).run()
    print(json.dumps(_done(play, play.look)))  # noqa: T201 - the answer to whoever started it


if __name__ == "__main__":
    main()
