"""The bench's bare loops drive the store's own statements: they must follow every change of theirs."""

from __future__ import annotations

import asyncio

import pytest

from bench import raw
from bench.engines.base import Engine
from bench.load import PAYLOAD, QUEUE
from redrive.core.verbs import Checkup, QueueTally
from redrive.stores.base import Store
from redrive.stores.url import store_from_url

pytestmark = pytest.mark.slow


async def looked(store: Store) -> tuple[tuple[QueueTally, ...], Checkup]:
    await store.open()
    tally, checkup = await store.tally(), await store.check()
    await store.close()
    return tally.queues, checkup


def test_the_bare_loops_leave_what_the_store_would(engine: Engine) -> None:
    """Also their inserts: the least that leaves the same rows leaves nothing to be repaired."""
    url = engine.empty("raw")
    own = raw.of(url)
    try:
        own.insert(PAYLOAD, 200, 100)
        own.drain(50)
    finally:
        own.close()
    (row,), checkup = asyncio.run(looked(store_from_url(url)))
    assert (row.queue, row.ready, row.leased, row.done) == (QUEUE, 0, 0, 200)
    assert checkup.findings == ()
