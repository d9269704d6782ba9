"""Receipts to a healthy target on this machine, beside the bare HTTP client: what it costs to be sure.

`python -m bench.receipts target {}` is the target, a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.child import end_with_the_harness, say
from bench.harness import Child
from bench.lab import Lab, Reading, check
from redrive import Redrive

RECEIPTS = 5_000
AT_ONCE = 50
START = 20.0
"""Seconds that the target may take until it listens."""
SUMMARY = "x" * 100
ANSWER_LIMIT = 1024 * 1024
ARTIFACTS = ["s3://bucket/results.json"]


def receipts(lab: Lab) -> list[Reading]:
    with Child("target", lab.scratch, {}, module="bench.receipts") as target:
        url = f"http://127.0.0.1:{target.line(START)['port']}"
        bare = asyncio.run(_bare(url))
        ours = asyncio.run(_ours(url, lab.engine.empty("receipts")))
        bare_client = asyncio.run(_bare_client(url))
    return [
        Reading(f"receipts, {AT_ONCE} at once", ours, "/s", "bare aiohttp, the same calls", bare, at_least=0.4),
        Reading("the same receipts", ours, "/s", "our HTTP client, bare", bare_client),
    ]


async def _timed(send: Callable[[int], Awaitable[None]]) -> float:
    """So many senders, each with one call at a time."""
    numbers = iter(range(RECEIPTS))

    async def sender() -> None:
        for number in numbers:
            await send(number)

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    return RECEIPTS / (time.perf_counter() - start)


def _call(number: int) -> dict[str, Any]:
    arguments = {
        "worker_id": "bench",
        "task_id": f"task-{number}",
        "lease_id": f"lease-{number}",
        "result": {"summary": SUMMARY, "artifact_pointers": ARTIFACTS},
        "artifacts": ARTIFACTS,
    }
    params = {"name": "asyncgate.complete", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def _bare(url: str) -> float:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(number: int) -> None:
            async with session.post(f"{url}/mcp", json=_call(number)) as response:
                answer = await response.json()
            check(answer["id"], number, "answered")

        return await _timed(send)


async def _bare_client(url: str) -> float:
    """What we send receipts with: the ratio to it is what it costs to be sure, however fast a client is."""
    from redrive.net.http import HttpClient

    client = HttpClient(connections=AT_ONCE)
    await client.open()
    headers = {"Content-Type": "application/json"}

    async def send(number: int) -> None:
        body = json.dumps(_call(number)).encode()
        reply = await client.post(f"{url}/mcp", body, headers, within=60_000, limit=ANSWER_LIMIT, safe=True)
        check(json.loads(reply.body)["id"], number, "answered")

    rate = await _timed(send)
    await client.close()
    return rate


async def _ours(url: str, store: str) -> float:
    from redrive.receipts import Receipt, ReceiptClient

    async with ReceiptClient(url, store, concurrency=AT_ONCE, log=False) as client:

        async def send(number: int) -> None:
            receipt = Receipt(
                lease_id=f"lease-{number}",
                task_id=f"task-{number}",
                worker_id="bench",
                status="complete",
                summary=SUMMARY,
                artifact_pointers=list(ARTIFACTS),
            )
            check(await client.send_receipt(receipt), True, "delivered")

        rate = await _timed(send)
    # The last ones were taken by the target just now, and are settled when the client is closed.
    async with Redrive(store, log=False) as app:
        (row,) = (await app.tally()).queues
    check(row.done, RECEIPTS, "done")
    return rate


async def target(_config: dict[str, Any]) -> None:
    from aiohttp import web

    async def serve(request: web.BaseRequest) -> web.Response:
        asked = json.loads(await request.read())
        answer = {
            "jsonrpc": "2.0",
            "id": asked["id"],
            "result": {"content": [{"type": "text", "text": '{"ok": true}'}]},
        }
        return web.json_response(answer)

    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    say(port=runner.addresses[0][1])
    await asyncio.Event().wait()


if __name__ == "__main__":
    end_with_the_harness()
    asyncio.run(target(json.loads(sys.argv[2])))
