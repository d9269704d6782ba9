"""Work on letters in place, killed before each of its statements: every letter is what it was, or over."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

from redrive.stores.sqlite import SqliteStore
from tests.stores.test_sqlite_in_place import AFTER, BEFORE, look, prepare, work
from tests.support.rig.crash import SqlPoints
from tests.support.rig.fork import Child


def in_a_child(path: Path, chosen: int | None) -> tuple[int, object]:
    """Its exit status, and how many statements it came to when the store was open, and in the end."""

    def run() -> list[int]:
        points = SqlPoints(lambda: os.kill(os.getpid(), signal.SIGKILL), chosen)
        points.install()
        passed: list[int] = []
        asyncio.run(work(SqliteStore(path, binding="stdlib"), lambda: passed.append(points.passed)))
        return [*passed, points.passed]

    return Child(run).wait()


def test_work_on_letters_killed_at_every_statement_is_done_or_not(quick_path: Path) -> None:
    origin = quick_path / "origin.db"
    asyncio.run(prepare(origin))
    assert asyncio.run(look(origin)) == BEFORE
    status, passed = in_a_child(Path(shutil.copy(origin, quick_path / "clean.db")), None)
    assert (status, asyncio.run(look(quick_path / "clean.db"))) == (0, AFTER)
    assert isinstance(passed, list)
    first, last = passed
    seen = []
    for point in range(first + 1, last + 1):
        path = Path(shutil.copy(origin, quick_path / f"{point}.db"))
        assert in_a_child(path, point)[0] == -signal.SIGKILL
        seen.append(asyncio.run(look(path)))
        assert seen[-1] in (BEFORE, AFTER), point
        # Whoever has this name holds them still, or finds what is left to be done.
        asyncio.run(work(SqliteStore(path)))
        assert asyncio.run(look(path)) == AFTER, point
    assert BEFORE in seen
    assert AFTER in seen
