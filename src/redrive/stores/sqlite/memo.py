"""What this process remembers of its leases on SQLite: also what binds them to others."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.verbs import Settlement
from redrive.stores.memo import MOST, Memo
from redrive.stores.sqlite.tied import Tied


class BoundMemo(Memo):
    """Ties may be added while an item is leased: whoever settles by this says which ones he knows of."""

    def __init__(self) -> None:
        super().__init__()
        self._tied: dict[str, Tied] = {}

    def bind(self, items: Iterable[Tied]) -> None:
        """Of a write that leases them. If it is not committed, they are not remembered, and this is not asked for."""
        if len(self._tied) > MOST:
            self._tied.clear()
        for item in items:
            self._tied[item.id] = item

    def forget(self, settlements: Iterable[Settlement]) -> None:
        if self._tied:
            for settlement in settlements:
                self._tied.pop(settlement.id, None)
        super().forget(settlements)

    def tied(self, item_id: str) -> Tied | None:
        """None for one that is bound to nobody, as far as is known here."""
        return self._tied.get(item_id)
