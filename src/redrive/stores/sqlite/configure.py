"""Settings of queues and routes on SQLite."""

from __future__ import annotations

from msgspec import UNSET

from redrive.core import codec
from redrive.core.verbs import QueueChange, QueueSettings, changed
from redrive.stores.checks import check_capacity
from redrive.stores.sqlite import slots
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "configure")


def configure(tx: Tx, queue: str, change: QueueChange) -> None:
    tx.declare(queue)
    kept, fill = tx.execute(_SQL["settings"], (queue,)).fetchone()
    if change.capacity is not UNSET and change.capacity is not None:
        check_capacity(queue, change.capacity, fill)
    before = QueueSettings() if kept is None else codec.decode(kept, QueueSettings)
    _adopt(tx, queue, before, changed(before, change))
    if change.paused is not None:
        by, reason = (change.by, change.reason) if change.paused else ("", "")
        tx.execute(_SQL["pause"], (change.paused, by, reason, queue))
    tx.woken.add(queue)


def _adopt(tx: Tx, queue: str, before: QueueSettings, after: QueueSettings) -> None:
    if after == before:
        return
    # A queue that has none again costs its leases nothing again.
    tx.execute(_SQL["keep"], (None if after == QueueSettings() else codec.encode(after), queue))
    if after.rate != before.rate:
        tx.execute(_SQL["full_rate"], (queue,))
    if after.max_per_key != before.max_per_key:
        slots.free_all(tx, queue)


def settings(tx: Tx, queue: str) -> QueueSettings:
    row = tx.execute(_SQL["settings"], (queue,)).fetchone()
    return QueueSettings() if row is None or row[0] is None else codec.decode(row[0], QueueSettings)


def configure_route(tx: Tx, route: str, capacity: int | None) -> None:
    if capacity is not None:
        row = tx.execute(_SQL["route"], (route,)).fetchone()
        check_capacity(route, capacity, 0 if row is None else row[0])
    tx.execute(_SQL["keep_route"], (route, capacity))
    tx.execute(_SQL["forget_route"], (route,))
