"""Who waits for whom: an edge goes from an awaited item to one that waits, and is gone when the awaited one is done."""

from __future__ import annotations

from collections.abc import Iterable


class Edges:
    def __init__(self) -> None:
        self.missing: dict[str, set[str]] = {}
        self.waiting: dict[str, set[str]] = {}

    def add(self, waiting: str, awaited: Iterable[str]) -> None:
        for one in awaited:
            self.missing.setdefault(waiting, set()).add(one)
            self.waiting.setdefault(one, set()).add(waiting)

    def fulfil(self, awaited: str) -> list[str]:
        """It is done: those who waited for it, of whom some may wait for others."""
        freed = sorted(self.waiting.pop(awaited, ()))
        for one in freed:
            self._cut(self.missing, one, awaited)
        return freed

    def give_up(self, waiting: str) -> None:
        """It waits for nobody any more."""
        for one in self.missing.pop(waiting, ()):
            self._cut(self.waiting, one, waiting)

    @staticmethod
    def _cut(edges: dict[str, set[str]], end: str, other: str) -> None:
        edges[end].discard(other)
        if not edges[end]:
            del edges[end]
