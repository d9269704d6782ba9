"""Ids in the order of an instant: what is due next, which lease ends next."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from redrive.core.item import Instant


class Slot(NamedTuple):
    when: Instant
    seq: int
    id: str


class Agenda:
    """A heap that forgets lazily: a removed slot stays in it until it comes up or until half of the heap is stale."""

    def __init__(self) -> None:
        self._heap: list[Slot] = []
        self._slots: dict[str, Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._slots

    def add(self, when: Instant, seq: int, item_id: str) -> None:
        slot = self._slots[item_id] = Slot(when, seq, item_id)
        heapq.heappush(self._heap, slot)

    def remove(self, item_id: str) -> None:
        del self._slots[item_id]
        if len(self._heap) > 2 * len(self._slots) + 64:
            self._heap = list(self._slots.values())
            heapq.heapify(self._heap)

    def first(self) -> Slot | None:
        while self._heap:
            slot = self._heap[0]
            if self._slots.get(slot.id) == slot:
                return slot
            heapq.heappop(self._heap)
        return None

    def due(self, now: Instant, limit: int) -> list[Slot]:
        """The first of those due, at most `limit`, in order. Looks at no others."""
        found: list[Slot] = []
        while len(found) < limit and (first := self.first()) is not None and first.when <= now:
            slot = heapq.heappop(self._heap)
            # What was removed and came back to the same place is in the heap twice.
            if not found or found[-1] != slot:
                found.append(slot)
        for slot in found:
            heapq.heappush(self._heap, slot)
        return found

    def until(self, horizon: Instant | None) -> list[Slot]:
        """All slots up to and with the horizon (None: all), in no order."""
        first = self.first()
        if first is None or (horizon is not None and first.when > horizon):
            return []
        return [slot for slot in self._slots.values() if horizon is None or slot.when <= horizon]
