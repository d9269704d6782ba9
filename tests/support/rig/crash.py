"""R3: the scenario, killed at one point after another.

    python -m tests.support.rig.crash <folder> <kind> <items> <points>

A point of kind `sql` is a statement that writes, or a commit: SIGKILL before the n-th of them. A point of kind `verb`
is a call of the store: SIGKILL before it, or when it is done and nobody was told. For each point this process forks
the scenario, forks the drain, and prints one line. Points `count`: how many there are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from redrive.stores.sqlite import SqliteStore
from redrive.testing.faults import FaultyStore
from tests.support.rig import records as r
from tests.support.rig.log import Log, now_ns
from tests.support.rig.scenario import Place, drain, play

MUTATING = ("put", "lease", "settle", "extend", "reclaim", "amend", "prune", "configure")
READS = ("select", "pragma", "explain", "analyze")


class SqlPoints:
    """Counts the statements of all connections of this process; kills it before the chosen one."""

    def __init__(self, kill: Callable[[], None], chosen: int | None) -> None:
        self.passed = 0
        self._count = itertools.count(1)
        self._kill = kill
        self._chosen = chosen
        self._connect = sqlite3.connect

    def install(self) -> None:
        def connect(*args: object, **kwargs: object) -> sqlite3.Connection:
            connection: sqlite3.Connection = self._connect(*args, **kwargs)  # type: ignore[call-overload]  # passed on
            connection.set_trace_callback(self._before)
            return connection

        sqlite3.connect = connect  # type: ignore[assignment]  # the one seam that needs no hook in the store

    def _before(self, statement: str) -> None:
        words = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
        if " ".join(words).lstrip().lower().startswith(READS):
            return
        self.passed = next(self._count)
        if self.passed == self._chosen:
            self._kill()


def scenario_process(place: Place, kind: str, items: int, chosen: int | None) -> int:
    """The number of points passed, for whoever counts. With a chosen point it does not return."""
    log = Log(place.logs / "nemesis.log")

    def kill() -> None:
        log(r.Struck(os.getpid(), "kill", now_ns()))
        os.kill(os.getpid(), signal.SIGKILL)

    # The binding that can be traced through sqlite3.connect.
    store = SqliteStore(place.database, binding="stdlib")
    if kind == "sql":
        points = SqlPoints(kill, chosen)
        points.install()
        asyncio.run(play(place, store, items))
        return points.passed
    faulty = FaultyStore(store, counted=MUTATING)
    if chosen is not None:
        faulty.crash_at(chosen, lambda _: kill())
    asyncio.run(play(place, faulty, items))
    return faulty.points


def forked(work: Callable[[], object]) -> tuple[int, object]:
    """Run the work in a child; its exit status (negative: the signal) and what it returned."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            answer = json.dumps(work()).encode()
            os.write(writer, answer)
            status = 0
        except BaseException:  # noqa: BLE001 - it is printed, and the parent sees the status
            traceback.print_exc()
        finally:
            os._exit(status)  # nothing of the parent's may be unwound in the child
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), json.loads(answer) if answer else None


def try_point(folder: Path, kind: str, items: int, chosen: int | None) -> dict[str, object]:
    place = Place(folder / "crash.db", folder / "logs")
    place.logs.mkdir(parents=True)
    status, passed = forked(lambda: scenario_process(place, kind, items, chosen))
    drained, faults = forked(lambda: asyncio.run(drain(place)))
    if drained == 0 and not faults:
        shutil.rmtree(folder)
    return {"point": chosen, "status": status, "passed": passed, "drained": drained, "faults": faults}


def main() -> None:
    folder, kind, items, points = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    for chosen in [None] if points == "count" else [int(point) for point in points.split(",")]:
        result = try_point(folder / f"{kind}-{chosen}", kind, items, chosen)
        print(json.dumps(result), flush=True)  # noqa: T201 - the answer to whoever started this process


if __name__ == "__main__":
    main()
