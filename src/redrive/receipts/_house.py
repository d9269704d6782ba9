"""Where something of receipts lives that is used without `await`: in the loop thread of this process."""

from __future__ import annotations

from redrive.blocking.loop_thread import Closable, LoopThreadHost


class House(LoopThreadHost):
    move_in, move_out = LoopThreadHost.open, LoopThreadHost.close  # until receipts.blocking uses these names

    def __init__(self, tenant: Closable) -> None:
        instead = "import from redrive.receipts, and `await` {name}(...)"
        super().__init__(tenant, what="{name} of redrive.receipts.blocking", instead=instead)
