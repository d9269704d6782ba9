"""R22 backlog on SQLite. A long reader leaves no large log behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from redrive.core.item import NewItem
from redrive.stores.sqlite import SqliteStore, checkpoint, connect
from tests.support.rig.size import BACKLOG, Backlog, proof_size

SIZE = f"{BACKLOG[proof_size()].reading:,} commits while it reads"

MOST = 4
BINDINGS = ("stdlib", "apsw")


async def log_after_a_long_reader(folder: Path, binding: str, size: Backlog) -> None:
    """In proportion: as the log of a real store to its limits, so that of this one to smaller limits."""
    path = folder / "redrive.db"
    log = folder / "redrive.db-wal"
    store = await SqliteStore(path, binding=binding, durability="process-crash").open()  # type: ignore[arg-type]

    async def write(rounds: int, name: str) -> None:
        for n in range(rounds):
            await store.put([NewItem(f"{name}-{n}-{m}", "q", b"x" * 1_000) for m in range(20)])

    try:
        await write(size.steady, "steady")
        steady = log.stat().st_size
        reading = Elsewhere(path)
        await write(size.reading, "reading")
        grown = log.stat().st_size
        assert grown > MOST * steady, "the reader kept nothing: this proves nothing"
        reading.close()
        await write(size.steady, "after")
        assert log.stat().st_size <= MOST * steady
        assert (await store.tally()).queues[0].ready == 20 * (2 * size.steady + size.reading)
    finally:
        await store.close()


class Elsewhere:
    """A reader in another process, since a file takes one SQLite library in a process."""

    def __init__(self, path: Path) -> None:
        script = (
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('begin');"
            "c.execute('select count(*) from item').fetchone(); print('reading', flush=True); sys.stdin.readline()"
        )
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=pipe, stdout=pipe)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"reading\n"

    def close(self) -> None:
        self._process.communicate(b"\n")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "WAL_KEPT", connect.WAL_KEPT // 100)
    monkeypatch.setattr(checkpoint, "AFTER", checkpoint.AFTER // 100)


@pytest.mark.usefixtures("small")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("binding", BINDINGS)
async def test_r22_the_log_is_small_again_after_a_long_reader(tmp_path: Path, binding: str) -> None:
    await log_after_a_long_reader(tmp_path, binding, BACKLOG[proof_size()])
