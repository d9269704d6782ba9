"""What a closure works with inside a transaction: the connection, the instant, and the counters it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from redrive.core.item import Instant
from redrive.stores.sqlite.binding import Connection, Cursor
from redrive.stores.statements import load

Kind = Literal["ready", "leased", "done", "open", "archived", "trash", "cancelled"]

_PLACES: dict[str, int] = {
    kind: place for place, kind in enumerate(("ready", "leased", "done", "open", "archived", "trash", "cancelled"))
}
_SQL = load("sqlite", "count")


class Tx:
    """One verb's part of a transaction. `woken`: queues in which it made something ready. `weight`: payload bytes."""

    __slots__ = (
        "_causes",
        "_counts",
        "change",
        "change_many",
        "connection",
        "execute",
        "executemany",
        "now",
        "weight",
        "woken",
    )

    def __init__(self, connection: Connection, now: Instant) -> None:
        self.connection = connection
        self.execute: Callable[..., Cursor] = connection.execute
        self.executemany: Callable[[str, Iterable[Any]], Cursor] = connection.executemany
        self.change: Callable[..., int] = connection.change
        self.change_many: Callable[[str, Sequence[Any]], int] = connection.change_many
        self.now = now
        self.woken: set[str] = set()
        self.weight = 0
        self._counts: dict[str, list[int]] = {}
        self._causes: dict[tuple[str, str], int] = {}

    def count(self, queue: str, kind: Kind, by: int) -> None:
        """Kept until `flush`: however many items move, each queue's row is written once."""
        counts = self._counts.get(queue)
        if counts is None:
            counts = self._counts[queue] = [0] * len(_PLACES)
        counts[_PLACES[kind]] += by

    def count_cause(self, cause: str, queue: str, by: int) -> None:
        key = (cause, queue)
        self._causes[key] = self._causes.get(key, 0) + by

    def declare(self, queue: str) -> None:
        self.execute(_SQL["declare"], (queue,))

    def flush(self) -> None:
        for queue, counts in self._counts.items():
            if any(counts):
                self.execute(_SQL["move"], (*counts, queue))
        for (cause, queue), by in self._causes.items():
            if by:
                self.execute(_SQL["cause"], (cause, queue, by))
            if by < 0:
                self.execute(_SQL["forget_causes"], (cause, queue))
        self._counts.clear()
        self._causes.clear()
