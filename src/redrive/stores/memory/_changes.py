"""The number of the last change of every item that is or was a letter."""

from __future__ import annotations

from bisect import bisect_left


class Changes:
    def __init__(self) -> None:
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._numbers

    def note(self, item_id: str) -> None:
        """The item has changed: the next number is its."""
        before = self._numbers.get(item_id)
        if before is not None:
            del self._order[bisect_left(self._order, (before, item_id))]
        self._last += 1
        self._numbers[item_id] = self._last
        self._order.append((self._last, item_id))

    def after(self, number: int, limit: int) -> list[tuple[int, str]]:
        start = bisect_left(self._order, (number + 1, ""))
        return self._order[start : start + limit]
