"""What a closure works with inside a transaction: the connection, the instant, and the counters it moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from redrive.core import codec
from redrive.core.families import family_of
from redrive.core.item import Instant
from redrive.core.verbs import QueueSettings
from redrive.errors import EncryptionKeyMissing, QueueFull
from redrive.stores.sqlite.binding import Connection, Cursor
from redrive.stores.statements import load

Kind = Literal["ready", "leased", "done", "open", "archived", "trash", "cancelled", "held", "parked"]

KINDS: tuple[Kind, ...] = ("ready", "leased", "done", "open", "archived", "trash", "cancelled", "held", "parked")
"""In the order of count.move."""
_PLACES: dict[str, int] = {kind: place for place, kind in enumerate(KINDS)}
_LEASED = _PLACES["leased"]
_LIVE = tuple(_PLACES[kind] for kind in ("ready", "held", "parked", "leased"))
_SQL = load("sqlite", "count")
_CHANGES = load("sqlite", "changes")
_FAMILIES = load("sqlite", "families")


class Family(NamedTuple):
    """A declared family; `running`: of all its members."""

    paused: bool
    settings: QueueSettings | None
    running: int


class Tx:
    """One verb's part of a transaction. `woken`: queues in which it made something ready. `weight`: payload bytes.

    `admitted`: how many items a put adds to each queue, for those that have a capacity. `changed`: the letters that it
    makes, changes or ends, by number. `in_clear`: queues that get a body which is not encrypted.
    """

    __slots__ = (
        "_causes",
        "_counts",
        "_families",
        "_lowered",
        "_routes",
        "admitted",
        "change",
        "change_many",
        "changed",
        "connection",
        "execute",
        "executemany",
        "in_clear",
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
        self.in_clear: set[str] = set()
        self.changed: dict[int, None] = {}
        self._counts: dict[str, list[int]] = {}
        self._causes: dict[tuple[str, str], int] = {}
        self._routes: dict[str, int] = {}
        self._families: dict[str, Family | None] = {"": None}
        self._lowered: set[str] = set()

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

    def family(self, name: str, *, anew: bool = False) -> Family | None:
        """None if it is not declared; also for the name of none."""
        if anew or name not in self._families:
            row = self.execute(_FAMILIES["family"], (name,)).fetchone()
            if row is None:
                self._families[name] = None
            else:
                settings = None if row[1] is None else codec.decode(row[1], QueueSettings)
                self._families[name] = Family(row[0] != 0, settings, row[2])
        return self._families[name]

    def counted_family(self, name: str, kind: Kind) -> int:
        """Of its members, what is not in its row yet."""
        return sum([counts[_PLACES[kind]] for queue, counts in self._counts.items() if family_of(queue) == name])

    def lower(self) -> None:
        """Leases of a family shall look at its members in which something may be leased."""
        for queue in self.woken - self._lowered:
            family = family_of(queue)
            if family and self.family(family) is not None:
                self.execute(_FAMILIES["lower"], (family, queue, self.now))
        self._lowered |= self.woken

    def _count_families(self) -> None:
        for queue, counts in tuple(self._counts.items()):
            family = family_of(queue)
            if not family or self.family(family) is None:
                continue
            for kind, by in zip(KINDS, counts, strict=True):
                self.count(family, kind, by)
            if queue in self.admitted:
                self.admit(family, self.admitted[queue])

    def flush(self) -> None:
        self._count_families()
        for queue, counts in sorted(self._counts.items()):
            if any(counts):
                for settings, fill in self.execute(_SQL["move"], (*counts, queue)).fetchall():
                    if settings is not None:
                        self._obey(queue, codec.decode(settings, QueueSettings), fill, counts)
        self._counts.clear()
        if self._causes:
            self._flush_letters()
        if self.changed:
            self._number_changes()
        self.lower()

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

    def change_letters(self, seqs: Iterable[int]) -> None:
        """Every write that makes, changes or ends letters says so here. Numbered once, however often it does."""
        self.changed.update(dict.fromkeys(seqs))

    def _number_changes(self) -> None:
        count = len(self.changed)
        ((last,),) = self.execute(_CHANGES["take"], (count,)).fetchall()
        self.execute(_CHANGES["number"], (last - count, codec.encode([*self.changed]).decode()))
        self.changed.clear()

    def _obey(self, queue: str, settings: QueueSettings, fill: int, counts: list[int]) -> None:
        """`fill` is what the queue holds now. Who enters as a letter took a place like the others."""
        if settings.encrypt and queue in self.in_clear:
            raise EncryptionKeyMissing(queue)
        more = self.admitted.get(queue, 0)
        if more and settings.capacity is not None:
            before = fill - sum([counts[place] for place in _LIVE])
            if before + more > settings.capacity:
                members = [name for name in sorted(self.admitted) if family_of(name) == queue]
                raise QueueFull(
                    queue, fill=before, capacity=settings.capacity, more=more, member=members[-1] if members else ""
                )
        if counts[_LEASED] < 0 and settings.max_running is not None:
            self.woken.add(queue)
