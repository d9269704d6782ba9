"""The measurements. Each row takes its baseline in the same breath and gives readings; `report` takes their medians."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import growth, log, pages
from bench.harness import PAYLOAD, QUEUE, Child, cpu_seconds, remove
from bench.lab import Lab, Reading, check, enqueue_in_chunks
from bench.peers import Huey
from bench.raw import BATCH, Own
from redrive import Redrive
from redrive.blocking import Redrive as Facade

LETTERS = 10_000
CALLERS = 64
SAMPLES = 120
CALLS = 400


def drain(lab: Lab) -> list[Reading]:
    count = lab.drain_size()
    worker, own, minimal, huey = lab.drain(), lab.own(count), lab.minimal(count), lab.huey()
    same = lab.own(count, lab.concurrency)
    ours, cpu = worker["rate"], sum(worker["cpu_us_per_item"].values())
    return [
        Reading("drain", ours, "/s", f"raw own schema, batch {BATCH}", own["rate"], at_least=0.40),
        Reading("drain, CPU per item", cpu, "µs", f"raw own schema, batch {BATCH}", own["cpu_us_per_item"]),
        Reading("drain, equal batches", ours, "/s", f"raw own schema, batch {lab.concurrency}", same["rate"]),
        Reading("drain, minimal", ours, "/s", f"raw minimal table, batch {BATCH}", minimal),
        Reading("drain, peer", ours, "/s", "huey on SQLite, FULL", huey, at_least=10.0),
    ]


def bulk(lab: Lab) -> list[Reading]:
    path = lab.scratch / "bulk.db"

    def raw(count: int) -> float:
        engine = Own(remove(path))
        try:
            return engine.insert(PAYLOAD, count, 1_000)
        finally:
            engine.close()

    count = lab.size("bulk", lambda: raw(10_000), 10_000, 150_000)
    ours = asyncio.run(enqueue_in_chunks(path, count, 1_000))
    return [Reading("bulk enqueue, chunks of 1,000", ours, "/s", "raw own schema, the same", raw(count), at_least=0.50)]


def fail(lab: Lab) -> list[Reading]:
    base, full, bare = lab.drain()["rate"], lab.fail(traceback=True), lab.fail(traceback=False)
    return [
        Reading("fail to dead", full, "/s", "own drain", base, at_least=0.20),
        Reading("fail to dead, traceback=False", bare, "/s", "own drain", base, at_least=0.35),
    ]


def replay(lab: Lab) -> list[Reading]:
    async def once(path: Path) -> float:
        app = Redrive(f"sqlite:///{path}", log=False)
        app.queue(QUEUE)
        async with app:
            start = time.perf_counter()
            done = await app.letters.replay(f"queue:{QUEUE}", reason="the bench")
            took = time.perf_counter() - start
            (row,) = (await app.tally()).queues
        check(len(done.changed), LETTERS, "changed")
        check(row.ready, LETTERS, "ready")
        return took

    return [Reading(f"replay of {LETTERS:,} letters", asyncio.run(once(lab.failed(LETTERS))), "s", at_most=0.5)]


def callers(lab: Lab) -> list[Reading]:
    one = asyncio.run(_enqueue_for(1.5, 1, lab.scratch))
    many = asyncio.run(_enqueue_for(1.5, CALLERS, lab.scratch))
    return [Reading(f"enqueue, {CALLERS} callers", many, "/s", "1 caller", one, at_least=6.0)]


def singles(lab: Lab) -> list[Reading]:
    peer = Huey(remove(lab.scratch / "huey.db"))
    theirs = peer.enqueue_rate(1.5)
    peer.close()
    ours = asyncio.run(_enqueue_for(1.5, 1, lab.scratch))
    return [Reading("enqueue one by one", ours, "/s", "huey on SQLite, FULL", theirs)]


async def _enqueue_for(seconds: float, callers_: int, scratch: Path) -> float:
    app = Redrive(f"sqlite:///{remove(scratch / 'singles.db')}", log=False)
    app.queue(QUEUE)
    count = 0

    async def call(until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await app.enqueue(QUEUE, PAYLOAD)
            count += 1

    async with app:
        start = time.perf_counter()
        await asyncio.gather(*(call(start + seconds) for _ in range(callers_)))
        took = time.perf_counter() - start
        (row,) = (await app.tally()).queues
    check(row.ready, count, "ready")
    return count / took


def blocking(lab: Lab) -> list[Reading]:
    """Also without the fsync, behind which the facade could hide."""
    plain, bare = f"sqlite:///{lab.scratch}/", "?durability=process-crash"
    return [
        _facade("blocking enqueue", f"{plain}blocking.db", f"{plain}async.db"),
        _facade("blocking enqueue, process-crash", f"{plain}blocking.db{bare}", f"{plain}async.db{bare}"),
    ]


def _facade(line: str, ours: str, theirs: str) -> Reading:
    """Medians of single calls, by turns: one through the facade, one awaited in a loop."""
    facade, app = Facade(ours, log=False), Redrive(theirs, log=False)
    facade.queue(QUEUE)
    app.queue(QUEUE)
    waited: list[float] = []
    awaited: list[float] = []

    async def one() -> float:
        start = time.perf_counter()
        await app.enqueue(QUEUE, PAYLOAD)
        return time.perf_counter() - start

    with facade, asyncio.Runner() as loop:
        loop.run(app.open())
        for _ in range(CALLS):
            awaited.append(loop.run(one()))
            start = time.perf_counter()
            facade.enqueue(QUEUE, PAYLOAD)
            waited.append(time.perf_counter() - start)
        loop.run(app.close())
    value, base = statistics.median(waited) * 1000, statistics.median(awaited) * 1000
    return Reading(line, value, "ms", "async enqueue", base, at_most=2.0)


def pickup(lab: Lab) -> list[Reading]:
    """From before the enqueue in this process until the handler in an idle worker of another one.

    Both write before that, so there are two fsyncs in it; without them it shows what is ours.
    """

    async def collect(url: str) -> list[float]:
        app = Redrive(url, log=False)
        app.queue(QUEUE)
        async with app:
            with Child("stamp", lab.scratch, {"url": url}) as worker:
                await app.enqueue(QUEUE, {"sent": time.monotonic()})
                worker.line(20.0)
                times = []
                for _ in range(SAMPLES):
                    await asyncio.sleep(random.uniform(0.01, 0.04))
                    await app.enqueue(QUEUE, {"sent": time.monotonic()})
                    times.append(float(worker.line(10.0)["latency"]))
        return sorted(times)

    url = f"sqlite:///{remove(lab.scratch / 'pickup.db')}"
    times, bare = (asyncio.run(collect(one)) for one in (url, f"{url}?durability=process-crash"))
    return [
        Reading("pickup from an idle worker, p50", statistics.median(times) * 1000, "ms", at_most=5.0),
        Reading("pickup from an idle worker, p99", times[int(len(times) * 0.99)] * 1000, "ms"),
        Reading("pickup, process-crash, p50", statistics.median(bare) * 1000, "ms"),
    ]


def idle(lab: Lab) -> list[Reading]:
    """CPU of a worker with nothing to do, over 5 s."""

    async def seed(path: Path) -> None:
        app = Redrive(f"sqlite:///{path}", log=False)
        app.queue(QUEUE)
        async with app:
            await app.enqueue(QUEUE, {"sent": time.monotonic()})

    path = remove(lab.scratch / "idle.db")
    asyncio.run(seed(path))
    with Child("stamp", lab.scratch, {"url": f"sqlite:///{path}"}) as worker:
        worker.line(20.0)
        time.sleep(1.0)
        before, start = cpu_seconds(worker.pid), time.monotonic()
        time.sleep(5.0)
        after, took = cpu_seconds(worker.pid), time.monotonic() - start
    spent = sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())
    return [Reading("idle worker, share of a core", spent / took * 100, "%", at_most=0.5)]


def memory(lab: Lab) -> list[Reading]:
    return [Reading("drain, memory store", float(lab.work(None, fill=50_000)["rate"]), "/s")]


USUAL: dict[str, Callable[[Lab], list[Reading]]] = {
    "drain": drain,
    "fail": fail,
    "bulk": bulk,
    "replay": replay,
    "callers": callers,
    "singles": singles,
    "blocking": blocking,
    "memory": memory,
    "pickup": pickup,
    "idle": idle,
}
GROWTH: dict[str, Callable[[Lab], list[Reading]]] = {
    "grow-waiting": growth.waiting,
    "grow-letters": growth.letters,
    "letters-page": pages.page,
    "flat-memory": growth.memory,
    "wal": log.wal,
}
ROWS = USUAL | GROWTH
GROUPS = {"usual": tuple(USUAL), "growth": tuple(GROWTH), "all": tuple(ROWS)}
ONCE = ("pickup", "idle", *GROWTH)
"""Rows that are samples over time in themselves and are not repeated."""


def profile(lab: Lab, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The drains named, each once with and once without a profiler, on 20,000 items."""
    found = {}
    for name in names:
        changes = PROFILES[name]
        plain = lab.work(lab.filled(20_000), **changes)
        found[name] = plain | {"profile": lab.work(lab.filled(20_000), profile=True, **changes)["profile"]}
    return found


PROFILES: dict[str, dict[str, object]] = {
    "drain": {},
    "fail": {"fail": True},
    "bare": {"fail": True, "traceback": False},
}
