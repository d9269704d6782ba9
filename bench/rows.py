"""The measurements. Each row takes its baseline in the same breath and gives readings; `report` takes their medians."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import PAYLOAD, QUEUE, CannotMeasure, Child, ask, copy, cpu_seconds, remove
from bench.peers import Huey
from bench.raw import BATCH, Own
from redrive import Redrive

SECONDS = 2.2
"""How long a raw run should take at least; counts are sized for it by a probe."""
LETTERS = 10_000
CALLERS = 64
SAMPLES = 120


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of the table, once. The target is for the ratio if there is a baseline, else the most `value` may be."""

    line: str
    value: float
    unit: str
    against: str = ""
    baseline: float | None = None
    target: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else self.value / self.baseline


class Lab:
    """Fresh databases, sizes that fit the machine, and the drains that several rows share within a repeat."""

    def __init__(self, scratch: Path, concurrency: int) -> None:
        self.scratch = scratch
        self.concurrency = concurrency
        self.facts: list[dict[str, Any]] = []
        self._templates: dict[str, Path] = {}
        self._sizes: dict[str, int] = {}
        self._drained: dict[str, Any] | None = None

    def next_repeat(self) -> None:
        self._drained = None

    def size(self, name: str, probe: Callable[[], float], low: int, high: int) -> int:
        """How many items keep it busy for SECONDS, asked once."""
        if name not in self._sizes:
            self._sizes[name] = max(low, min(high, int(probe() * SECONDS) // 1000 * 1000))
        return self._sizes[name]

    def filled(self, count: int) -> Path:
        """A fresh database with so many ready items."""
        name = f"ready-{count}"
        if name not in self._templates:
            path = self.scratch / f"{name}.template"
            asyncio.run(enqueue_in_chunks(path, count, 10_000))
            self._templates[name] = path
        return copy(self._templates[name], self.scratch / "queue.db")

    def failed(self, count: int) -> Path:
        """A fresh database with so many open letters, each made by really failing."""
        name = f"dead-{count}"
        if name not in self._templates:
            self.work(self.filled(count), fail=True)
            self._templates[name] = (self.scratch / "queue.db").rename(self.scratch / f"{name}.template")
        return copy(self._templates[name], self.scratch / "queue.db")

    def work(self, path: Path | None, **changes: object) -> dict[str, Any]:
        """One worker process until the queue is empty."""
        url = "memory:" if path is None else f"sqlite:///{path}"
        plain = {"traceback": True, "fail": False, "fill": 0, "profile": False}
        found = ask("drain", self.scratch, {"url": url, "concurrency": self.concurrency} | plain | changes)
        self.facts.append({key: value for key, value in found.items() if key != "profile"} | changes)
        return found

    def drain_size(self) -> int:
        return self.size("drain", lambda: float(self.own(5_000)["rate"]), 10_000, 150_000)

    def drain(self) -> dict[str, Any]:
        """Our own drain, once per repeat."""
        if self._drained is None:
            self._drained = self.work(self.filled(self.drain_size()))
        return self._drained

    def fail(self, *, traceback: bool) -> float:
        def probe() -> float:
            return float(self.work(self.filled(3_000), fail=True, traceback=traceback)["rate"])

        count = self.size(f"fail-{traceback}", probe, 3_000, 100_000)
        return float(self.work(self.filled(count), fail=True, traceback=traceback)["rate"])

    def own(self, count: int, batch: int = BATCH) -> dict[str, Any]:
        return ask("own", self.scratch, {"path": str(self.filled(count)), "batch": batch})

    def minimal(self, count: int) -> float:
        return float(ask("minimal", self.scratch, {"path": str(self.scratch / "minimal.db"), "count": count})["rate"])

    def huey(self) -> float:
        return self._huey(self.size("huey", lambda: self._huey(500), 500, 20_000))

    def _huey(self, count: int) -> float:
        path = remove(self.scratch / "huey.db")
        peer = Huey(path)
        peer.fill(count)
        peer.close()
        return float(ask("huey", self.scratch, {"path": str(path), "count": count})["rate"])


async def enqueue_in_chunks(path: Path, count: int, chunk: int) -> float:
    """Items per second of `enqueue_many`, on a database made for it."""
    app = Redrive(f"sqlite:///{remove(path)}", log=False)
    app.queue(QUEUE)
    payloads = [PAYLOAD] * chunk
    async with app:
        start = time.perf_counter()
        for done in range(0, count, chunk):
            await app.enqueue_many(QUEUE, payloads[: count - done])
        took = time.perf_counter() - start
        (row,) = (await app.tally()).queues
    _check(row.ready, count, "ready")
    return count / took


def drain(lab: Lab) -> list[Reading]:
    count = lab.drain_size()
    worker, own, minimal, huey = lab.drain(), lab.own(count), lab.minimal(count), lab.huey()
    same = lab.own(count, lab.concurrency)
    ours, cpu = worker["rate"], sum(worker["cpu_us_per_item"].values())
    return [
        Reading("drain", ours, "/s", f"raw own schema, batch {BATCH}", own["rate"], 0.40),
        Reading("drain, CPU per item", cpu, "µs", f"raw own schema, batch {BATCH}", own["cpu_us_per_item"]),
        Reading("drain, equal batches", ours, "/s", f"raw own schema, batch {lab.concurrency}", same["rate"]),
        Reading("drain, minimal", ours, "/s", f"raw minimal table, batch {BATCH}", minimal),
        Reading("drain, peer", ours, "/s", "huey on SQLite, FULL", huey, 10.0),
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
    return [Reading("bulk enqueue, chunks of 1,000", ours, "/s", "raw own schema, the same", raw(count), 0.50)]


def fail(lab: Lab) -> list[Reading]:
    base, full, bare = lab.drain()["rate"], lab.fail(traceback=True), lab.fail(traceback=False)
    return [
        Reading("fail to dead", full, "/s", "own drain", base, 0.20),
        Reading("fail to dead, traceback=False", bare, "/s", "own drain", base, 0.35),
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
        _check(len(done.changed), LETTERS, "changed")
        _check(row.ready, LETTERS, "ready")
        return took

    return [Reading(f"replay of {LETTERS:,} letters", asyncio.run(once(lab.failed(LETTERS))), "s", target=0.5)]


def callers(lab: Lab) -> list[Reading]:
    one = asyncio.run(_enqueue_for(1.5, 1, lab.scratch))
    many = asyncio.run(_enqueue_for(1.5, CALLERS, lab.scratch))
    return [Reading(f"enqueue, {CALLERS} callers", many, "/s", "1 caller", one, 6.0)]


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
    _check(row.ready, count, "ready")
    return count / took


def pickup(lab: Lab) -> list[Reading]:
    """From before the enqueue in this process until the handler in an idle worker of another one."""

    async def collect(path: Path) -> list[float]:
        app = Redrive(f"sqlite:///{path}", log=False)
        app.queue(QUEUE)
        async with app:
            with Child("stamp", lab.scratch, {"url": f"sqlite:///{path}"}) as worker:
                await app.enqueue(QUEUE, {"sent": time.monotonic()})
                worker.line(20.0)
                times = []
                for _ in range(SAMPLES):
                    await asyncio.sleep(random.uniform(0.01, 0.04))
                    await app.enqueue(QUEUE, {"sent": time.monotonic()})
                    times.append(float(worker.line(10.0)["latency"]))
        return sorted(times)

    times = asyncio.run(collect(remove(lab.scratch / "pickup.db")))
    return [
        Reading("pickup from an idle worker, p50", statistics.median(times) * 1000, "ms"),
        Reading("pickup from an idle worker, p99", times[int(len(times) * 0.99)] * 1000, "ms"),
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
    return [Reading("idle worker, share of a core", spent / took * 100, "%")]


def memory(lab: Lab) -> list[Reading]:
    return [Reading("drain, memory store", float(lab.work(None, fill=50_000)["rate"]), "/s")]


ROWS: dict[str, Callable[[Lab], list[Reading]]] = {
    "drain": drain,
    "fail": fail,
    "bulk": bulk,
    "replay": replay,
    "callers": callers,
    "singles": singles,
    "memory": memory,
    "pickup": pickup,
    "idle": idle,
}
ONCE = ("pickup", "idle")
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


def _check(found: int, wanted: int, word: str) -> None:
    if found != wanted:
        raise CannotMeasure(f"{found:,} are {word}, not {wanted:,}")
