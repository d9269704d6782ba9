"""What the rows share: a reading, fresh stores, and the runs that several rows are measured against."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.beside import PYTHON, Beside
from bench.engines.base import Engine
from bench.harness import CannotMeasure, ask
from bench.load import PAYLOAD, QUEUE
from bench.raw import BATCH, BATCHES
from redrive import Redrive

SECONDS = 2.2
"""How long a raw run should take at least; counts are sized for it by a probe."""
MANY = 1_000_000
"""What the growth rows hold against a thousand."""
READER = 10.0
"""Seconds for which the row `wal` keeps a reader in the way."""
PLAIN: dict[str, object] = {
    "traceback": True,
    "fail": False,
    "fill": 0,
    "profile": False,
    "nap": 0.0,
    "gate": False,
}
"""What a worker is told if nothing else is."""


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


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the measurements are; tests have smaller ones."""

    concurrency: int = 500
    many: int = MANY
    reader: float = READER
    seconds: float = SECONDS


class Lab:
    """Fresh stores, sizes that fit the machine, and the drains that several rows share within a repeat."""

    def __init__(self, engine: Engine, scratch: Path, scale: Scale | None = None, peers: Path = PYTHON) -> None:
        scale = scale or Scale()
        self.engine = engine
        self.scratch = scratch
        self.concurrency = scale.concurrency
        self.many = scale.many
        self.reader = scale.reader
        self.seconds = scale.seconds
        self.beside = Beside(engine, scratch, peers, scale.seconds)
        self.facts: list[dict[str, Any]] = []
        self._templates: set[str] = set()
        self._lettered: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._best_batch: int | None = None
        self._drained: dict[str, Any] | None = None

    def next_repeat(self) -> None:
        self._drained = None

    def size(self, name: str, probe: Callable[[], float], low: int, high: int) -> int:
        """How many items keep it busy for so long, asked once."""
        if name not in self._sizes:
            busy = int(probe() * self.seconds) // 1000 * 1000
            # Where less time is wanted than usual, less will do at least, too.
            low = max(1_000, int(low * min(1.0, self.seconds / SECONDS)) // 1000 * 1000)
            self._sizes[name] = max(low, min(high, busy))
        return self._sizes[name]

    # --- stores ---

    def filled(self, count: int, store: str = "queue") -> str:
        """The URL of a fresh store with so many ready items."""
        return self.prepared(f"ready-{count}", lambda url: asyncio.run(enqueue_in_chunks(url, count, 10_000)), store)

    def prepared(self, name: str, fill: Callable[[str], object], store: str = "queue") -> str:
        """The URL of a fresh copy of a store that is filled once."""
        if name not in self._templates:
            fill(self.engine.empty(name))
            self._templates.add(name)
        return self.engine.copy(name, store)

    def failed(self, count: int) -> str:
        """The URL of a fresh store with so many open letters, each made by really failing."""
        name = f"dead-{count}"
        if name not in self._templates:
            self.work(self.filled(count, name), fail=True)
            self._templates.add(name)
        return self.engine.copy(name, "queue")

    def lettered(self, count: int) -> str:
        """A store with so many open letters and a few put away. Made once and shared: it is too large to copy."""
        name = f"letters-{count}"
        if name not in self._lettered:
            url = self.engine.letters(name, count + count // 16)
            asyncio.run(_put_away(url))
            self.engine.rest()
            self._lettered[name] = url
        return self._lettered[name]

    # --- runs ---

    def work(self, url: str, **changes: object) -> dict[str, Any]:
        """One worker process until the queue is empty."""
        before = self.engine.server_cpu()
        found = ask("drain", self.scratch, {"url": url, "concurrency": self.concurrency} | PLAIN | changes)
        spent = self.engine.server_cpu() - before
        found["server_us_per_item"] = round(spent / found["count"] * 1e6, 2)
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
        return ask("own", self.scratch, {"url": self.filled(count), "batch": batch})

    def best_batch(self) -> int:
        """With which the bare loop is fastest; looked for once."""
        if self._best_batch is None:
            count = min(self.drain_size(), 20_000)
            rates = {batch: float(self.own(count, batch)["rate"]) for batch in BATCHES}
            self._best_batch = max(rates, key=lambda batch: rates[batch])
        return self._best_batch

    def insert(self, count: int, chunk: int) -> float:
        """Of the bare engine."""
        url = self.engine.empty("bulk")
        return float(ask("insert", self.scratch, {"url": url, "count": count, "chunk": chunk})["rate"])

    def minimal(self, count: int) -> float:
        url = self.engine.empty("minimal")
        return float(ask("minimal", self.scratch, {"url": url, "count": count})["rate"])


async def enqueue_in_chunks(url: str, count: int, chunk: int) -> float:
    """Items per second of `enqueue_many`, on a store made for it."""
    app = Redrive(url, log=False)
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


async def _put_away(url: str) -> None:
    """By the verbs, so that the audit of it is there as well."""
    async with Redrive(url, log=False) as app:
        await app.letters.archive("died>30d", reason="the bench")
        await app.letters.discard("died>29d", reason="the bench")


def check(found: int, wanted: int, word: str) -> None:
    if found != wanted:
        raise CannotMeasure(f"{found:,} are {word}, not {wanted:,}")
