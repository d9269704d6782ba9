"""What this process remembers of its own leases, to spare the database a question. Only the writer thread uses it.

Losing it costs time, never truth: whatever is taken from here is checked by the statement that uses it.
"""

from __future__ import annotations

MOST = 16_384


class Memo:
    def __init__(self) -> None:
        self._places: dict[str, tuple[int, str]] = {}
        self._gave_nothing: dict[str, str] = {}

    def remember(self, item_id: str, seq: int, queue: str) -> None:
        self._places[item_id] = (seq, queue)

    def trim(self) -> None:
        while len(self._places) > MOST:
            del self._places[next(iter(self._places))]
        while len(self._gave_nothing) > MOST:
            del self._gave_nothing[next(iter(self._gave_nothing))]

    def place(self, item_id: str) -> tuple[int, str] | None:
        return self._places.get(item_id)

    def forget(self, item_id: str) -> None:
        self._places.pop(item_id, None)

    def gave_nothing(self, worker: str, nonce: str) -> None:
        """An empty answer changes nothing in the database, so its nonce is kept here and costs no commit."""
        self._gave_nothing[worker] = nonce

    def gave(self, worker: str) -> None:
        self._gave_nothing.pop(worker, None)

    def knows_nothing_was_given(self, worker: str, nonce: str) -> bool:
        return self._gave_nothing.get(worker) == nonce
