"""What this process remembers of its leases on SQLite: where those lie that are bound to nobody."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.item import Item
from redrive.stores.memo import MOST, Memo


class BoundMemo(Memo):
    """Who is bound to others is looked at when it ends, so that its place need not be known."""

    def __init__(self) -> None:
        super().__init__()
        self._bound: dict[str, None] = {}

    def bind(self, ids: Iterable[str]) -> None:
        """Of what is leased now. Forgetting them costs time: their ends are tried the short way first."""
        if len(self._bound) > MOST:
            self._bound.clear()
        self._bound.update(dict.fromkeys(ids))

    def remember(self, items: Iterable[Item]) -> None:
        bound = self._bound
        if bound:
            items = [item for item in items if bound.pop(item.id, True) is not None]
        super().remember(items)
