"""R3: the scenario, killed at one point after another.

    python -m tests.support.rig.crash <folder> <store> <kind> <items> <points>

A point of kind `sql` is a statement that writes, or a commit, of SQLite: SIGKILL before the n-th of them. A point of
kind `verb` is a call of the store: SIGKILL before it, or when it is done and nobody was told. A point of kind `wire` is
a request to a server: see `wire`. For each point this process forks the scenario, forks the drain, and prints one line.
Points: numbers such as `1,2,3`; or `count`: how many there are.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.faults import FaultyStore
from tests.support.rig import records as r
from tests.support.rig.fork import Child
from tests.support.rig.log import Log, now_ns
from tests.support.rig.scenario import Place, drain, play
from tests.support.rig.wire import over_the_wire
from tests.support.stores import fresh_store

Result = dict[str, Any]

VERBS = frozenset(name for name, member in vars(Store).items() if inspect.iscoroutinefunction(member))
READING = frozenset(
    (
        *(
            "open",
            "close",
            "get",
            "find",
            "ids",
            "tally",
            "causes",
            "tombstone",
            "settings",
            "gates",
            "gate",
            "workers",
        ),
        *("kinds", "wait", "document", "documents", "journal", "check", "backup"),
    )
)
MUTATING = VERBS - READING
"""A new verb is one of them until it is named above. `changes` writes numbers where an engine gives them late."""
READS = ("select", "pragma", "explain", "analyze")
TRACEABLE = "?binding=stdlib"
"""The binding whose statements can be seen through sqlite3.connect."""


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

    if kind == "sql":
        points = SqlPoints(kill, chosen)
        points.install()
        asyncio.run(play(place, store_from_url(place.url + TRACEABLE), items))
        return points.passed
    faulty = FaultyStore(store_from_url(place.url), counted=MUTATING)
    if chosen is not None:
        faulty.crash_at(chosen, lambda _: kill())
    asyncio.run(play(place, faulty, items))
    return faulty.points


def try_point(place: Place, kind: str, items: int, chosen: int | None) -> Result:
    place.logs.mkdir(parents=True)
    if kind == "wire":
        status, passed = over_the_wire(place, items, chosen)
    else:
        status, passed = Child(lambda: scenario_process(place, kind, items, chosen)).wait()
    drained, faults = Child(lambda: asyncio.run(drain(place))).wait()
    return {"point": chosen, "status": status, "passed": passed, "drained": drained, "faults": faults}


def try_fresh(folder: Path, store: str, kind: str, items: int, chosen: int | None) -> Result:
    place = folder / f"{kind}-{chosen}"
    place.mkdir(parents=True)
    with fresh_store(store, place) as url:
        result = try_point(Place(url, place / "logs"), kind, items, chosen)
    if result["drained"] == 0 and not result["faults"]:
        shutil.rmtree(place)
    print(json.dumps(result), flush=True)  # noqa: T201 - the answer to whoever started this process
    return result


def spread(count: int, limit: int) -> list[int]:
    """So many points, evenly spread with the first and the last."""
    if limit >= count:
        return list(range(1, count + 1))
    return sorted({1 + round(step * (count - 1) / (limit - 1)) for step in range(limit)})


def main() -> None:
    folder, store, kind, items, points = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5]
    if points == "count":
        # Twice: the first one on a server may have to say more, such as the scripts that it will know from then on.
        chosen: list[int | None] = [None, None]
    else:
        chosen = [int(point) for point in points.split(",")]
    for point in chosen:
        try_fresh(folder, store, kind, items, point)


if __name__ == "__main__":
    main()
