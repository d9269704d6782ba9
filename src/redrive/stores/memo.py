"""What this process remembers of its own leases, to spare the database a question.

Only what was committed is remembered: an id and its number belong together for ever. Losing it costs time, never truth.
"""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.item import Item
from redrive.core.verbs import LeaseRequest, Settlement

MOST = 16_384


class Memo:
    """Filled in the loop after a commit and read by the writer's thread: single steps on a dict need no lock."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, str]] = {}
        self._gave_nothing: dict[tuple[str, int], str] = {}

    def remember(self, items: Iterable[Item]) -> None:
        places = self._places
        for item in items:
            places[item.id] = (item.seq, item.queue)
        while len(places) > MOST:
            del places[next(iter(places))]

    def forget(self, settlements: Iterable[Settlement]) -> None:
        for settlement in settlements:
            self._places.pop(settlement.id, None)

    def place(self, item_id: str) -> tuple[int, str] | None:
        return self._places.get(item_id)

    def gave_nothing(self, request: LeaseRequest) -> None:
        """An empty answer changes nothing in the database, so its nonce is kept here and costs no commit."""
        self._gave_nothing[request.worker, request.lane] = request.nonce
        while len(self._gave_nothing) > MOST:
            del self._gave_nothing[next(iter(self._gave_nothing))]

    def gave(self, request: LeaseRequest) -> None:
        self._gave_nothing.pop((request.worker, request.lane), None)

    def knows_nothing_was_given(self, request: LeaseRequest) -> bool:
        return self._gave_nothing.get((request.worker, request.lane)) == request.nonce
