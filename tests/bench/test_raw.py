"""The bench's bare loop drives the store's own statements: it must follow every change of theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.harness import QUEUE
from bench.raw import Own
from redrive.core.verbs import QueueTally
from redrive.stores.sqlite import SqliteStore


async def counted(path: Path) -> tuple[QueueTally, ...]:
    store = await SqliteStore(path).open()
    tally = await store.tally()
    await store.close()
    return tally.queues


def test_the_bare_loop_leaves_what_the_store_would(tmp_path: Path) -> None:
    own = Own(tmp_path / "raw.db")
    own.insert({"n": 1}, 200, 100)
    own.drain(50)
    own.close()
    (row,) = asyncio.run(counted(tmp_path / "raw.db"))
    assert (row.queue, row.ready, row.leased, row.done) == (QUEUE, 0, 0, 200)
