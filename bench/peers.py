"""The peer that runs beside us: huey on SQLite at its durable setting, the fastest one there (see docs/performance)."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.harness import PAYLOAD


class Huey:
    """`fsync=True` is synchronous=FULL. One thread: more made it slower. Its dequeue deletes before the task runs."""

    def __init__(self, path: Path, count: int = 0) -> None:
        from huey import SqliteHuey

        self._expected = count
        self._seen = 0
        self._first = 0.0
        self.huey: Any = SqliteHuey("bench", filename=str(path), fsync=True, results=False)
        self.task: Any = self.huey.task(name="noop")(self._noop)

    def _noop(self, payload: object) -> None:  # noqa: ARG002 - a task gets its payload
        self._seen += 1
        if self._seen == 1:
            self._first = time.monotonic()
        if self._seen == self._expected:
            took = time.monotonic() - self._first
            sys.stdout.write(json.dumps({"rate": self._expected / took}) + "\n")
            sys.stdout.flush()

    def fill(self, count: int) -> None:
        """The rows that huey itself would write, in one transaction: preparation, not measured."""
        storage = self.huey.storage
        with storage.db(commit=True) as cursor:
            for _ in range(count):
                data = self.huey.serialize_task(self.task.s(PAYLOAD))
                cursor.execute("insert into task (queue, data, priority) values (?, ?, 0)", (storage.name, data))

    def enqueue_rate(self, seconds: float) -> float:
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.task(PAYLOAD)
            count += 1
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        self.huey.storage.close()

    def work(self) -> None:
        self.huey.create_consumer(workers=1, periodic=False).run()
