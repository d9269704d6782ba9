"""Webhooks on this machine: ingest beside a bare endpoint, delivery beside the bare HTTP client, a dead neighbour.

`python -m bench.webhooks ROLE CONFIG` is a process of its own: `bare` and `ours` receive, `target` is delivered to.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.child import end_with_the_harness, say
from bench.harness import Child
from bench.lab import Lab, Reading, check

HOOKS = 4_000
AT_ONCE = 50
START = 20.0
"""Seconds that a process may take until it listens."""
BODY = json.dumps({"type": "order.paid", "data": {"id": 4711, "note": "x" * 200}}).encode()
LOOPBACK = ("127.0.0.0/8",)
ENDPOINTS = 1_000
SHORT = 10_000
"""The backlog behind a head, against which a long one is measured."""
CHUNK = 1_000
IN_ORDER = 3.0
"""Seconds of deliveries in order."""


def ingest(lab: Lab) -> list[Reading]:
    """At the same durability: every answer waits for a commit that is on the disk."""
    if lab.engine.name == "sqlite":
        path = Path(tempfile.mkdtemp(dir=lab.scratch)) / "bare.db"
        with Child("bare", lab.scratch, {"path": str(path)}, module="bench.webhooks") as server:
            bare = asyncio.run(_post(f"http://127.0.0.1:{server.line(START)['port']}/h/bench"))
    else:
        bare = None
    with Child("ours", lab.scratch, {"url": lab.engine.empty("ingest")}, module="bench.webhooks") as server:
        ours = asyncio.run(_post(f"http://127.0.0.1:{server.line(START)['port']}/h/bench"))
    against = "bare Starlette, one SQLite row each, batched"
    at_least = 0.5 if bare else None
    return [Reading(f"webhook ingest, {AT_ONCE} at once", ours, "/s", against if bare else "", bare, at_least=at_least)]


def deliver(lab: Lab) -> list[Reading]:
    with Child("target", lab.scratch, {}, module="bench.webhooks") as target:
        url = f"http://127.0.0.1:{target.line(START)['port']}/"
        bare = asyncio.run(_post(url))
        ours = asyncio.run(_deliver(lab.engine.empty("deliver"), url))
    line = f"webhook delivery, {AT_ONCE} at once"
    return [Reading(line, ours, "/s", "bare aiohttp, the same requests", bare, at_least=0.4)]


def neighbour(lab: Lab) -> list[Reading]:
    """From the moment a webhook is put to its delivery, with 1,000 endpoints."""
    with Child("target", lab.scratch, {}, module="bench.webhooks") as target:
        url = f"http://127.0.0.1:{target.line(START)['port']}/"
        alone = asyncio.run(_many(lab.engine.empty("alone"), url, dead=False))
        beside = asyncio.run(_many(lab.engine.empty("beside"), url, dead=True))
    line = f"webhook p95 of {ENDPOINTS:,} endpoints, one of them dead"
    return [Reading(line, beside * 1000, "ms", "none of them dead", alone * 1000, at_most=2.0)]


def head(lab: Lab) -> list[Reading]:
    """Webhooks of one endpoint that keeps order, behind which a million wait: nothing is scanned."""
    with Child("target", lab.scratch, {}, module="bench.webhooks") as target:
        url = f"http://127.0.0.1:{target.line(START)['port']}/"
        few = asyncio.run(_ordered(lab.engine.empty("few"), url, SHORT))
        many = asyncio.run(_ordered(lab.engine.empty("many"), url, lab.many))
    for name in ("few", "many"):
        lab.engine.drop(name)
    line = f"webhook in order, {lab.many:,} behind it"
    return [Reading(line, 1e6 / many, "µs each", f"{SHORT:,} behind it", 1e6 / few, at_most=1.3)]


async def _post(url: str) -> float:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:

        async def send(_: int) -> None:
            async with session.post(url, data=BODY, headers={"Content-Type": "application/json"}) as response:
                await response.read()
            check(response.status, 200, "answered")

        return await _timed(send)


async def _timed(send: Callable[[int], Awaitable[None]], count: int = HOOKS) -> float:
    """So many senders, each with one call at a time."""
    numbers = iter(range(count))

    async def sender() -> None:
        for number in numbers:
            await send(number)

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - start)


async def _filled(store: str, url: str, count: int, **options: Any) -> Any:
    from redrive.webhooks import Relay

    relay = await Relay(store, allow=LOOPBACK, log=False, concurrency=AT_ONCE).open()
    made = await relay.endpoints.create(url, id="bench", **options)
    await _timed(lambda _: _receive(relay, made.endpoint), count)
    return relay


async def _receive(relay: Any, endpoint: Any) -> None:
    from redrive.webhooks.model import Envelope

    await relay.receive(endpoint, Envelope(BODY))


async def _deliver(store: str, url: str) -> float:
    return await _drained(await _filled(store, url, HOOKS, order="none", concurrency=AT_ONCE), HOOKS)


async def _ordered(store: str, url: str, count: int) -> float:
    from redrive.app.internals import store_of
    from redrive.core.item import NewItem, Terms
    from redrive.engine.ids import new_ids
    from redrive.webhooks import Relay
    from redrive.webhooks.model import ORDER_KEY, Envelope

    payload, terms = Envelope(BODY).encode(), Terms(order_key=ORDER_KEY)
    async with Relay(store, allow=LOOPBACK, log=False) as relay:
        endpoint = (await relay.endpoints.create(url, id="bench")).endpoint
        for _ in range(0, count, CHUNK):
            await store_of(relay.app).put(
                [NewItem(item_id, endpoint.queue, payload, terms=terms) for item_id in new_ids(CHUNK)]
            )
        start = time.perf_counter()
        running = asyncio.create_task(relay.run())
        await asyncio.sleep(IN_ORDER)
        await relay.stop(grace="0s")
        await running
        took = time.perf_counter() - start
        (row,) = [row for row in (await relay.app.tally()).queues if row.queue == endpoint.queue]
    check(row.ready > 0, True, "some still wait")
    return float(row.done / took)


async def _drained(relay: Any, count: int) -> float:
    start = time.perf_counter()
    await relay.run(until_idle=True)
    took = time.perf_counter() - start
    (row,) = [row for row in (await relay.app.tally()).queues if row.queue == "webhook:bench"]
    check(row.done, count, "done")
    await relay.close()
    return count / took


async def _many(store: str, url: str, *, dead: bool) -> float:
    from redrive.webhooks import Relay

    async with Relay(store, allow=LOOPBACK, log=False, concurrency=AT_ONCE) as relay:
        made = []
        for number in range(ENDPOINTS):
            # Port 9 refuses: what cannot be delivered backs off, and its followers wait.
            there = "http://127.0.0.1:9/" if dead and number == 0 else url
            made.append((await relay.endpoints.create(there, id=f"e{number}")).endpoint)
        if dead:
            await _timed(lambda _: _receive(relay, made[0]), 1_000)
        running = asyncio.create_task(relay.run())
        times: list[float] = []

        async def one(number: int) -> None:
            start = time.perf_counter()
            put = await relay.receive(made[1 + number % (ENDPOINTS - 1)], _envelope())
            await relay.app.wait(put)
            times.append(time.perf_counter() - start)

        await _timed(one, 2_000)
        await relay.stop(grace="0s")
        await running
    return statistics.quantiles(times, n=20)[18]


def _envelope() -> Any:
    from redrive.webhooks.model import Envelope

    return Envelope(BODY)


# --- processes of their own ---


async def bare(config: dict[str, Any]) -> None:
    """Starlette, and one commit for all requests that came while the last one was on its way."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    writer = _Writer(Path(config["path"]))

    async def receive(request: Request) -> JSONResponse:
        await writer.put(await request.body())
        return JSONResponse({"ok": True})

    await _serve(Starlette(routes=[Route("/h/{endpoint}", receive, methods=["POST"])]))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.execute("create table hook (id integer primary key, body blob)")
        self._waiting: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, body: bytes) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write())
        await done

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, deque()
            await asyncio.to_thread(self._commit, [body for body, _ in batch])
            for _, done in batch:
                done.set_result(None)

    def _commit(self, bodies: list[bytes]) -> None:
        self._db.execute("begin immediate")
        self._db.executemany("insert into hook (body) values (?)", [(body,) for body in bodies])
        self._db.execute("commit")


async def ours(config: dict[str, Any]) -> None:
    from redrive.webhooks import Relay

    async with Relay(config["url"], allow=LOOPBACK, log=False) as relay:
        await relay.endpoints.create("http://127.0.0.1:9/", id="bench", order="none")
        await _serve(relay.asgi())


async def target(_config: dict[str, Any]) -> None:
    from aiohttp import web

    async def serve(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(text="ok")

    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    say(port=runner.addresses[0][1])
    await asyncio.Event().wait()


async def _serve(app: Any) -> None:
    from redrive.net.server import serving

    async with serving(app, "127.0.0.1", 0) as served:
        say(port=int(served.address.rpartition(":")[2]))
        await asyncio.Event().wait()


if __name__ == "__main__":
    end_with_the_harness()
    asyncio.run({"bare": bare, "ours": ours, "target": target}[sys.argv[1]](json.loads(sys.argv[2])))
