"""A model of what ordered keys promise: told what happens, it says who may run next. It knows nothing of stores."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from redrive.core.item import Item

Mode = Literal["block", "park", "skip"]


class Lines:
    """One line of ids per key. `stopped`: keys whose head is dead and keeps the others waiting."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.waiting: dict[str, list[str]] = defaultdict(list)
        self.stopped: dict[str, str] = {}
        self.running: set[str] = set()
        self.overtakes: list[str] = []
        self.starts = 0
        self._gaps: dict[str, str] = {}
        self._heads: dict[str, str] = {}
        self._marked: dict[str, str] = {}

    @property
    def left(self) -> int:
        return sum(map(len, self.waiting.values()))

    def put(self, key: str, item_id: str) -> None:
        self.waiting[key].append(item_id)
        self._lead(key)

    def started(self, item: Item) -> None:
        key = key_of(item)
        line, gap = self.waiting[key], self._marked.get(item.id, "")
        self.starts += 1
        if line[:1] != [item.id]:
            self.overtakes.append(f"{item.id} ran, and {line[:1]} is the next of {key}")
        elif key in self.stopped:
            self.overtakes.append(f"{item.id} ran behind {self.stopped[key]}, which is dead")
        elif key in self.running:
            self.overtakes.append(f"{item.id} ran while another of {key} did")
        elif item.gap != gap:
            self.overtakes.append(f"{item.id} has the gap {item.gap!r}, and was let past {gap!r}")
        self.running.add(key)

    def ended(self, item: Item, how: str) -> None:
        """`how`: done, failed (it will be tried again), crashed, or dead."""
        key = key_of(item)
        self.running.discard(key)
        if how == "done":
            self._mended(key, item.id)
            self._gone(key, item.id)
        elif how == "dead" and self.mode == "skip":
            self._gaps[key] = item.id
            self._gone(key, item.id)
        elif how == "dead":
            self.stopped[key] = item.id

    # --- what an operator does to a letter ---

    def replayed(self, key: str, item_id: str) -> None:
        """Back to its place if it stops its line, else to the tail."""
        self._mended(key, item_id)
        if self.stopped.get(key) == item_id:
            del self.stopped[key]
        else:
            self.put(key, item_id)

    def discarded(self, key: str, item_id: str) -> None:
        self._mended(key, item_id)
        if self.stopped.get(key) == item_id:
            del self.stopped[key]
            self._gone(key, item_id)

    def skipped(self, key: str, item_id: str) -> None:
        del self.stopped[key]
        self._gaps[key] = item_id
        self._gone(key, item_id)

    def _mended(self, key: str, item_id: str) -> None:
        if self._gaps.get(key) == item_id:
            del self._gaps[key]

    def _gone(self, key: str, item_id: str) -> None:
        if item_id in self.waiting[key]:
            self.waiting[key].remove(item_id)
        self._lead(key)

    def _lead(self, key: str) -> None:
        """Whoever becomes the head now is told of the gap that is there now."""
        head = self.waiting[key][0] if self.waiting[key] else ""
        if head and head != self._heads.get(key) and key in self._gaps:
            self._marked[head] = self._gaps[key]
        self._heads[key] = head


def key_of(item: Item) -> str:
    assert item.terms is not None, f"{item.id} came without its terms"
    return item.terms.order_key
