"""What a closure works with inside a transaction: the connection, the instant, and the counters it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from redrive.core import codec
from redrive.core.item import Instant
from redrive.core.verbs import QueueSettings
from redrive.errors import QueueFull
from redrive.stores.sqlite.binding import Connection, Cursor
from redrive.stores.statements import load

Kind = Literal["ready", "leased", "done", "open", "archived", "trash", "cancelled", "held", "parked"]

KINDS: tuple[Kind, ...] = ("ready", "leased", "done", "open", "archived", "trash", "cancelled", "held", "parked")
"""In the order of count.move."""
_PLACES: dict[str, int] = {kind: place for place, kind in enumerate(KINDS)}
_LEASED = _PLACES["leased"]
_LIVE = tuple(_PLACES[kind] for kind in ("ready", "held", "parked", "leased"))
_SQL = load("sqlite", "count")


class Tx:
    """One verb's part of a transaction. `woken`: queues in which it made something ready. `weight`: payload bytes.

    `admitted`: how many items a put adds to each queue, for those that have a capacity.
    """

    __slots__ = (
        "_causes",
        "_counts",
        "_routes",
        "admitted",
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
        self.admitted: dict[str, int] = {}
        self._counts: dict[str, list[int]] = {}
        self._causes: dict[tuple[str, str], int] = {}
        self._routes: dict[str, int] = {}

    def count(self, queue: str, kind: Kind, by: int) -> None:
        """Kept until `flush`: however many items move, each queue's row is written once."""
        counts = self._counts.get(queue)
        if counts is None:
            counts = self._counts[queue] = [0] * len(_PLACES)
        counts[_PLACES[kind]] += by

    def moved(self, queue: str, before: Kind, after: Kind, by: int = 1) -> None:
        if before != after:
            self.count(queue, before, -by)
            self.count(queue, after, by)

    def counted(self, queue: str, kind: Kind) -> int:
        """What is not in the queue's row yet."""
        counts = self._counts.get(queue)
        return 0 if counts is None else counts[_PLACES[kind]]

    def count_cause(self, cause: str, queue: str, by: int) -> None:
        key = (cause, queue)
        self._causes[key] = self._causes.get(key, 0) + by

    def count_route(self, route: str, by: int) -> None:
        """Letters without a route are what is left of the open ones."""
        if route:
            self._routes[route] = self._routes.get(route, 0) + by

    def counted_route(self, route: str) -> int:
        return self._routes.get(route, 0)

    def admit(self, queue: str, count: int) -> None:
        self.admitted[queue] = self.admitted.get(queue, 0) + count

    def declare(self, queue: str) -> None:
        self.execute(_SQL["declare"], (queue,))

    def flush(self) -> None:
        for queue, counts in sorted(self._counts.items()):
            if any(counts):
                for settings, fill in self.execute(_SQL["move"], (*counts, queue)).fetchall():
                    if settings is not None:
                        self._obey(queue, codec.decode(settings, QueueSettings), fill, counts)
        self._counts.clear()
        if self._causes:
            self._flush_letters()

    def _flush_letters(self) -> None:
        """Routes have no letters without causes."""
        for (cause, queue), by in self._causes.items():
            if by:
                self.execute(_SQL["cause"], (cause, queue, by))
            if by < 0:
                self.execute(_SQL["forget_causes"], (cause, queue))
        for route, by in self._routes.items():
            if by:
                self.execute(_SQL["route"], (route, by))
            if by < 0:
                self.execute(_SQL["forget_routes"], (route,))
        self._causes.clear()
        self._routes.clear()

    def _obey(self, queue: str, settings: QueueSettings, fill: int, counts: list[int]) -> None:
        """`fill` is what the queue holds now. Who enters as a letter took a place like the others."""
        more = self.admitted.get(queue, 0)
        if more and settings.capacity is not None:
            before = fill - sum([counts[place] for place in _LIVE])
            if before + more > settings.capacity:
                raise QueueFull(queue, fill=before, capacity=settings.capacity, more=more)
        if counts[_LEASED] < 0 and settings.max_running is not None:
            self.woken.add(queue)
