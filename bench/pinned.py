"""PostgreSQL with somebody who looks at one moment for a long time: nothing that was done since can be tidied away."""

from __future__ import annotations

import asyncio
from contextlib import closing

import psycopg

from bench import growth
from bench.growth import BATCH, FEW, Side, breathe, compare
from bench.lab import Lab, Reading

AT_MOST = 2.0


def snapshot(lab: Lab) -> list[Reading]:
    """Databases do not keep each other from tidying up, so the one beside it is free."""
    engine = lab.engine
    free = Side("free", engine.waiting("free", FEW))
    url = engine.waiting("pinned", FEW)
    pinned = Side("pinned", url)
    with closing(_looking(url)):
        asyncio.run(breathe([free, pinned]))
    for store in ("free", "pinned"):
        engine.drop(store)
    each = growth.TURNS * growth.BATCHES * BATCH
    what = f"lease + settle of {BATCH} under an old snapshot"
    readings = compare(
        f"{what}, {growth.ROUNDS * each:,} drained", pinned, free, lambda costs: costs.done, AT_MOST, against="none"
    )
    last = compare(f"{what}, the last {each:,}", pinned, free, lambda costs: costs.done[-1:], AT_MOST, against="none")
    return [*readings, *last]


def _looking(url: str) -> psycopg.Connection:
    """Somebody who began to look and has not finished."""
    reader = psycopg.connect(url)
    reader.execute("set transaction isolation level repeatable read")
    reader.execute("select count(*) from redrive.course").fetchone()
    return reader
