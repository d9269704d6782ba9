"""Statements of the hot path are planned once; what an operator filters by is planned for its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.tx import Tx
from redrive.stores.sqlite.writer import ActJob
from redrive.stores.statements import load
from tests.stores.sqlite_kit import lane

ASK = -1
"""As apsw has it: say how it is set, and leave it so."""


def keeps_plans(tx: Tx) -> bool:
    connection: Any = tx.connection
    return bool(connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, ASK))


def fails(tx: Tx) -> None:
    raise ValueError(str(keeps_plans(tx)))


async def test_plans_are_kept_but_for_acts(tmp_path: Path) -> None:
    store = await SqliteStore(tmp_path / "redrive.db", binding="apsw").open()
    writer = lane(store)
    assert await writer.submit(keeps_plans)
    assert not await writer.accept(ActJob(keeps_plans))
    assert await writer.submit(keeps_plans)
    with pytest.raises(ValueError, match="False"):
        await writer.accept(ActJob(fails))
    assert await writer.submit(keeps_plans), "also after one that failed"
    await store.close()


async def test_a_lease_looks_for_other_levels_and_kinds_behind_what_waits(tmp_path: Path) -> None:
    """Most items are plain first attempts: a lease must not read them to find that there is nothing else."""
    store = await SqliteStore(tmp_path / "redrive.db").open()
    explained = f"explain query plan {load('sqlite', 'lease')['queue']}"
    plan = await lane(store).submit(lambda tx: [str(row[-1]) for row in tx.execute(explained, ("q", "q")).fetchall()])
    for search in ("(queue=? AND kind=? AND level>?)", "(queue=? AND kind>?)"):
        assert any(search in step for step in plan), (search, plan)
    await store.close()
