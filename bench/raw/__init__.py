"""The bare engine: loops over a store's own statements with nothing around them, which is what a ratio is a ratio of.

They use the store's schema, statements or scripts, and connection settings, so they follow every change of theirs.
"""

from __future__ import annotations

from typing import Protocol

BATCH = 100
BATCHES = (100, 500, 1_000)
"""Sizes to look for the best among."""
TTL = 30_000
SHARE = 500
"""Of retries, in thousandths, as a new queue has it."""
WORKER = "raw"
FIRST = 1
"""The delivery of every item of a fresh queue."""


class Raw(Protocol):
    def drain(self, batch: int = BATCH) -> tuple[float, float]:
        """Items per second and our CPU seconds per item; each write makes the last batch done and leases the next."""

    def insert(self, payload: object, count: int, chunk: int) -> float:
        """Items per second of inserts, ids and encoded bodies made beforehand."""

    def close(self) -> None: ...


def of(url: str) -> Raw:
    """For the store at this URL, which is made if it is not there."""
    match url.partition(":")[0]:
        case "sqlite":
            from bench.raw.sqlite import Own

            return Own(url)
        case "postgresql":
            from bench.raw.postgres import Postgres

            return Postgres(url)
        case "redis":
            from bench.raw.redis import Redis

            return Redis(url)
        case scheme:
            raise ValueError(f"no bare loop for {scheme}")
