"""Where something of receipts lives that is used without `await`: in the loop thread of this process."""

from __future__ import annotations

from redrive.blocking import house


class House(house.House):
    def __init__(self, tenant: house.Closable) -> None:
        instead = "import from redrive.receipts, and `await` {name}(...)"
        super().__init__(tenant, what="{name} of redrive.receipts.blocking", instead=instead)
