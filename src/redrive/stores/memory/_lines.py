"""Items of one order key in their line: the head alone can be leased, the followers wait for their turn.

Only places in lines are kept here; what becomes of the items is decided in _bonds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from redrive.core.item import Item

Name = tuple[str, str]
"""(queue, order key)"""


@dataclass(slots=True)
class Line:
    """`status` says what a dead head does to those behind it; `gap` is the letter that they were let past.

    No follower has a place before `first`.
    """

    first: int = 1
    last: int = 0
    head: str = ""
    followers: dict[int, str] = field(default_factory=dict)
    status: Literal["flowing", "blocked", "parked"] = "flowing"
    gap: str = ""


def name_of(item: Item) -> Name | None:
    return (item.queue, item.terms.order_key) if item.terms is not None and item.terms.order_key else None


class Lines:
    def __init__(self) -> None:
        self._lines: dict[Name, Line] = {}
        self._places: dict[str, int] = {}

    def of(self, item: Item) -> Line | None:
        name = name_of(item)
        return None if name is None else self._lines.get(name)

    def all(self) -> Iterator[tuple[Name, Line]]:
        return iter(self._lines.items())

    def is_head(self, item: Item) -> bool:
        line = self.of(item)
        return line is not None and line.head == item.id

    def is_follower(self, item: Item) -> bool:
        return item.id in self._places

    def is_parked(self, item: Item) -> bool:
        line = self.of(item)
        return line is not None and line.status == "parked" and self.is_follower(item)

    def join(self, item: Item) -> Line | None:
        """At the tail; the first of a line is its head."""
        name = name_of(item)
        if name is None:
            return None
        line = self._lines.setdefault(name, Line())
        line.last += 1
        if line.head:
            line.followers[line.last] = item.id
            self._places[item.id] = line.last
        else:
            line.head = item.id
        return line

    def leave(self, item: Item) -> None:
        """A follower goes; nobody else moves for it."""
        line = self.of(item)
        if line is not None and item.id in self._places:
            del line.followers[self._places.pop(item.id)]

    def advance(self, item: Item) -> str:
        """The head goes: the id of the new one, or nothing."""
        line = self.of(item)
        if line is None:
            return ""
        line.status = "flowing"
        while line.first <= line.last and line.first not in line.followers:
            line.first += 1
        line.head = line.followers.pop(line.first, "")
        self._places.pop(line.head, None)
        self.tidy(item)
        return line.head

    def tidy(self, item: Item) -> None:
        """A line that says nothing any more is forgotten."""
        name, line = name_of(item), self.of(item)
        if name is not None and line is not None and not line.head and not line.gap:
            del self._lines[name]
