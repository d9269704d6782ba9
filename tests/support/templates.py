"""A SQLite database with its tables in it, to be copied: to make them takes longer than many a test."""

from __future__ import annotations

import asyncio
import functools
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from redrive.stores.sqlite import SqliteStore
from redrive.testing.clock import FakeClock


def prepared(path: Path) -> Path:
    """As if a store had been opened there once. Where there is a file already, it stays as it is."""
    if not path.exists():
        path.write_bytes(_contents())
    return path


@functools.cache
def _contents() -> bytes:
    with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
        path = Path(folder) / "redrive.db"

        async def open_and_close() -> None:
            store = await SqliteStore(path, clock=FakeClock()).open()
            await store.close()

        run_apart(open_and_close())
        assert not path.with_name("redrive.db-wal").exists(), "all of it is in the one file"
        return path.read_bytes()


def run_apart(work: Coroutine[Any, Any, None]) -> None:
    """In a thread of its own: where a test is async, this one has a loop already."""
    failed: list[BaseException] = []

    def main() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001 - it is raised where the test waits for it
            failed.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
