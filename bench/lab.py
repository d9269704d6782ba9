"""What the rows share: a reading, fresh databases, and the runs that several rows are measured against."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import seed
from bench.harness import PAYLOAD, QUEUE, CannotMeasure, ask, copy, remove
from bench.peers import Huey
from bench.raw import BATCH
from redrive import Redrive

SECONDS = 2.2
"""How long a raw run should take at least; counts are sized for it by a probe."""
MANY = 1_000_000
"""What the growth rows hold against a thousand."""
READER = 10.0
"""Seconds for which the row `wal` keeps a reader in the way."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of the table, once. `at_least` and `at_most` bound the ratio if there is a baseline, else `value`."""

    line: str
    value: float
    unit: str
    against: str = ""
    baseline: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else self.value / self.baseline


class Lab:
    """Fresh databases, sizes that fit the machine, and the drains that several rows share within a repeat."""

    def __init__(self, scratch: Path, concurrency: int, many: int = MANY, reader: float = READER) -> None:
        self.scratch = scratch
        self.concurrency = concurrency
        self.many = many
        self.reader = reader
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

    def lettered(self, count: int) -> Path:
        """A database with so many open letters and a few put away. Made once and shared: it is too large to copy."""
        name = f"letters-{count}"
        if name not in self._templates:
            path = seed.letters(self.scratch / f"{name}.db", count + count // 16)
            asyncio.run(_put_away(path))
            self._templates[name] = path
        return self._templates[name]

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
    check(row.ready, count, "ready")
    return count / took


async def _put_away(path: Path) -> None:
    """By the verbs, so that the audit of it is there as well."""
    async with Redrive(f"sqlite:///{path}", log=False) as app:
        await app.letters.archive("died>30d", reason="the bench")
        await app.letters.discard("died>29d", reason="the bench")


def check(found: int, wanted: int, word: str) -> None:
    if found != wanted:
        raise CannotMeasure(f"{found:,} are {word}, not {wanted:,}")
