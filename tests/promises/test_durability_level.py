"""What survives the loss of power, on a disk that forgets what was not synced; and that the level is told right.

The disk is tests/support/disk: where a machine does not allow it, these tests say "not run" and why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from redrive.errors import StoreError
from redrive.stores.sqlite import SqliteStore, connect
from tests.support.stores import StoreUrl

# -- the level in force ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["power-loss", "process-crash"])
async def test_the_level_in_force_is_told_in_both_profiles(store_url: StoreUrl, level: str) -> None:
    async with Redrive(f"{store_url('sqlite')}?durability={level}", log=False) as app:
        assert app.info().durability == level


async def test_power_loss_is_the_level_of_a_file_and_none_that_of_memory(store_url: StoreUrl) -> None:
    for kind, level in (("sqlite", "power-loss"), ("memory", "none")):
        async with Redrive(store_url(kind), log=False) as app:
            assert app.info().durability == level


@pytest.mark.parametrize(
    ("ignored", "answer"),
    [("pragma synchronous = 2", None), ("pragma journal_mode = wal", None), ("pragma journal_mode = wal", "wal")],
)
async def test_a_setting_that_is_not_honoured_is_never_told_as_if_it_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str, answer: str | None
) -> None:
    """SQLite ignores what it cannot do without a word; one of its bindings even answers as if it had."""
    really = connect.connect

    def deaf(settings: connect.Settings) -> Any:
        connection = really(settings)
        monkeypatch.setattr(connection, "execute", _ignoring(connection.execute, ignored, answer), raising=False)
        if "synchronous" in ignored:
            connection.execute("pragma synchronous = 1")
        return connection

    monkeypatch.setattr(connect, "connect", deaf)
    store = SqliteStore(tmp_path / "redrive.db", binding="stdlib")
    try:
        await store.open()
        assert store.info().durability != "power-loss"
    except StoreError:
        return
    finally:
        await store.close()


def _ignoring(execute: Callable[..., Any], ignored: str, answer: str | None) -> Callable[..., Any]:
    def instead(sql: str, *values: Any) -> Any:
        if sql != ignored:
            return execute(sql, *values)
        question = f"select '{answer}'" if answer else ignored.partition(" =")[0]
        return execute(question)

    return instead
