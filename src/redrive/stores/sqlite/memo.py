"""What this process remembers of its leases on SQLite: also what binds them to others."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.core.item import Item
from redrive.core.verbs import Settlement
from redrive.stores.memo import MOST, Memo
from redrive.stores.sqlite.tied import Tied


class BoundMemo(Memo):
    """Ties may be added while an item is leased: whoever settles by this says which ones he knows of."""

    def __init__(self) -> None:
        super().__init__()
        self._leasing: dict[str, Tied] = {}
        self._tied: dict[str, Tied] = {}

    def bind(self, items: Iterable[Tied]) -> None:
        """Of a write that leases them and is not committed yet."""
        if len(self._leasing) > MOST:
            self._leasing.clear()
        self._leasing.update({item.id: item for item in items})

    def remember(self, items: Iterable[Item]) -> None:
        if self._leasing:
            found = [(item.seq, self._leasing.pop(item.id, None)) for item in items]
            self._tied.update({one.id: one for seq, one in found if one is not None and one.seq == seq})
            if len(self._tied) > MOST:
                self._tied.clear()
        super().remember(items)

    def forget(self, settlements: Iterable[Settlement]) -> None:
        if self._tied:
            for settlement in settlements:
                self._tied.pop(settlement.id, None)
        super().forget(settlements)

    def tied(self, item_id: str) -> Tied | None:
        """None for one that is bound to nobody, as far as is known here."""
        return self._tied.get(item_id)
