"""huey on SQLite at its durable setting: the fastest one there (see docs/performance)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from huey import SqliteHuey

from bench.load import PAYLOAD


class Huey:
    """`fsync=True` is synchronous=FULL. One thread: more made it slower. Its dequeue deletes before the task runs."""

    def __init__(self, url: str, variant: int, handled: Callable[[], None]) -> None:
        self._workers = variant
        self._huey: Any = SqliteHuey("bench", filename=url.removeprefix("sqlite:///"), fsync=True, results=False)

        @self._huey.task(name="noop")
        def noop(payload: object) -> None:  # noqa: ARG001 - a task gets its payload
            handled()

        self._noop: Any = noop

    def fill(self, count: int) -> None:
        """The rows that huey itself would write, in one transaction: preparation, not measured."""
        storage = self._huey.storage
        with storage.db(commit=True) as cursor:
            for _ in range(count):
                data = self._huey.serialize_task(self._noop.s(PAYLOAD))
                cursor.execute("insert into task (queue, data, priority) values (?, ?, 0)", (storage.name, data))

    def one(self) -> None:
        self._noop(PAYLOAD)

    def work(self) -> None:
        self._huey.create_consumer(workers=self._workers, periodic=False).run()


PEERS: dict[str, Any] = {"huey": Huey}
