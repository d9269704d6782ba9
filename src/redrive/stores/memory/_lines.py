"""Items of one order key in their line: the head alone can be leased, the followers wait for their turn.

Only places in lines are kept here; what becomes of the items is decided in _bonds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from redrive.core.item import Item

Name = tuple[str, str]
"""(queue, order key)"""


@dataclass(slots=True)
class Line:
    """`status` says what a dead head does to those behind it; `gap` is the letter that they were let past.

    `order` has the place of every follower, and of some that left.
    """

    head: str = ""
    followers: dict[int, str] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    status: Literal["flowing", "blocked", "parked"] = "flowing"
    gap: str = ""

    def add(self, place: int, item_id: str) -> None:
        self.followers[place] = item_id
        heappush(self.order, place)

    def first(self) -> int | None:
        while self.order and self.order[0] not in self.followers:
            heappop(self.order)
        return self.order[0] if self.order else None


class Kept(NamedTuple):
    """A letter before its replay: its place under its order key, and whether it was the head or the gap of it."""

    letter: Item
    place: int
    role: Literal["", "head", "gap"]


def name_of(item: Item) -> Name | None:
    return (item.queue, item.terms.order_key) if item.terms is not None and item.terms.order_key else None


class Lines:
    """Places are numbers of one sequence for all lines: an empty line is forgotten, the place of a letter is not."""

    def __init__(self) -> None:
        self._lines: dict[Name, Line] = {}
        self._places: dict[str, int] = {}
        self._last = 0

    def of(self, item: Item) -> Line | None:
        name = name_of(item)
        return None if name is None else self._lines.get(name)

    def all(self) -> Iterator[tuple[Name, Line]]:
        return iter(self._lines.items())

    def is_head(self, item: Item) -> bool:
        line = self.of(item)
        return line is not None and line.head == item.id

    def is_follower(self, item: Item) -> bool:
        line = self.of(item)
        return line is not None and line.followers.get(self._places.get(item.id, 0)) == item.id

    def is_parked(self, item: Item) -> bool:
        line = self.of(item)
        return line is not None and line.status == "parked" and self.is_follower(item)

    def join(self, item: Item, *, back: bool = False) -> None:
        """At the tail, or `back` at the place that it had; the first of a line is its head."""
        name = name_of(item)
        if name is None:
            return
        if not back:
            self.take_place(item)
        line = self._lines.setdefault(name, Line())
        if line.head:
            line.add(self._places[item.id], item.id)
        else:
            line.head = item.id

    def take_place(self, item: Item) -> None:
        """Behind all that have one, in whatever line."""
        if name_of(item) is not None:
            self._last += 1
            self._places[item.id] = self._last

    def kept(self, letter: Item) -> Kept:
        line = self.of(letter)
        head = line is not None and line.head == letter.id
        gap = line is not None and line.gap == letter.id
        return Kept(letter, self._places.get(letter.id, 0), "head" if head else "gap" if gap else "")

    def put_back(self, letter: Item, kept: Kept, *, keeps_back: Literal["blocked", "parked", ""]) -> None:
        """A recalled letter has its place again. `keeps_back`: what a dead head does to those that come."""
        name = name_of(letter)
        if name is None:
            return
        self._places[letter.id] = kept.place
        line = self._lines.get(name, Line())
        if kept.role == "head" and keeps_back and not line.head:
            line.head, line.status = letter.id, keeps_back
        elif kept.role == "gap" and not line.gap:
            line.gap = letter.id
        if line.head or line.gap:
            self._lines[name] = line

    def leave(self, item: Item) -> None:
        """A follower goes; nobody else moves for it."""
        line = self.of(item)
        if line is not None and self.is_follower(item):
            del line.followers[self._places[item.id]]

    def advance(self, item: Item) -> str:
        """The head goes: the id of the new one, or nothing."""
        line = self.of(item)
        if line is None:
            return ""
        line.status = "flowing"
        first = line.first()
        line.head = "" if first is None else line.followers.pop(first)
        self.tidy(item)
        return line.head

    def change_places(self, line: Line) -> bool:
        """Whether the first follower stood before the head: then it is the head now, and that one follows."""
        first = line.first()
        if first is None or first > self._places[line.head]:
            return False
        line.add(self._places[line.head], line.head)
        line.head = line.followers.pop(first)
        return True

    def tidy(self, item: Item) -> None:
        """A line that says nothing any more is forgotten."""
        name, line = name_of(item), self.of(item)
        if name is not None and line is not None and not line.head and not line.gap:
            del self._lines[name]

    def forget(self, item_id: str) -> None:
        """It will not come back."""
        self._places.pop(item_id, None)
